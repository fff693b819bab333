"""The layers of an engine, whatever file they were read from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Annotated, TypeVar

from qdebug.engine_info.compiled import (
    MOVING_WORDS,
    PRODUCT_WORDS,
    CompiledKernel,
    operations,
)
from qdebug.engine_info.measurements import Device, ExecutionTimes
from qdebug.engine_info.tensors import (
    FLOATS,
    QUANTIZED,
    EngineTensor,
    dtype_of_kernel,
    total_bytes,
    widest,
)
from qdebug.network.layers import QUANTIZABLE_OPS
from qdebug.result import Hidden, Json, MaybeText, in_json

_MATRIX_TYPE = re.compile(
    r"correlation|conv|gemm|matri|matmul|fullyconnected|fully connected|attention|mha|moe",
    re.IGNORECASE,
)
_CONTROL_TYPES = frozenset({"shape_call", "signal", "wait"})
_MOVING_TYPES = frozenset({"reformat", "cast", "reorder", "convert", "noop"})
_OPAQUE_TYPES = frozenset({"myelin", "foreignnode"})
_MATRIX_NAME = re.compile(r"_(gemm|mha|fmha|fc|bmm|conv)(_|$)")
_MOVING_OR_CAST = MOVING_WORDS | {"Cast"}


T = TypeVar("T")
HELPER_OPS = frozenset({"Constant", "Cast", "QuantizeLinear", "DequantizeLinear"})
"""Operators that come and go with the precision."""


_QUANTIZER = re.compile(r"quant(?:ize)?_?linear", re.IGNORECASE)


def is_quantizer(name: str) -> bool:
    """Whether exporters name a QuantizeLinear or DequantizeLinear node so."""
    return bool(_QUANTIZER.search(name.rpartition("/")[2]))


class InfoSource(StrEnum):
    """What kind of file an engine's layers were read from."""

    ONNX = "onnx"
    LAYER_INFO = "layer-info"
    BUILD_LOG = "build-log"
    POLYGRAPHY = "polygraphy"
    PROFILE = "profile"
    RUNTIME = "runtime"
    """No file: a runtime that was asked."""


class Role(StrEnum):
    """What a layer of an engine is there for."""

    MATRIX = "matrix"
    """It multiplies matrices: the work that INT8 is meant for."""
    OTHER = "other"
    """It computes something else."""
    REFORMAT = "reformat"
    """It only moves or converts data."""
    OPAQUE = "opaque"
    """It holds several operations, matrix products too perhaps, and does not say which."""
    CONTROL = "control"
    """It computes no tensor: shapes on the host, signals between streams."""


@dataclass(frozen=True)
class EngineLayer:
    """One layer (kernel) of an engine.

    Attributes:
        layer_type: in TensorRT's words: correlation, gemm, kgen, CaskConvolution, Reformat …
        constants: weights and scales, as far as the file lists them.
        tactic: the kernel's name, or its number where there is no name.
        onnx_nodes: names of the ONNX nodes it computes, in the order of the file.
        named_only: the ONNX nodes were taken from the layer's name, as it has no metadata.
        sparse: the weights are 2:4 sparse; None when the file does not say.
        origin: why TensorRT added it: "REFORMAT", "QDQ", "CAST" or "".
        time_ms: of one execution; None when it was not measured.
        macs: multiply-accumulates of one execution, of a product whose operands are described;
            None for any other.
    """

    name: str
    layer_type: Annotated[str, Json(key="type")] = ""
    inputs: tuple[EngineTensor, ...] = ()
    outputs: tuple[EngineTensor, ...] = ()
    constants: tuple[EngineTensor, ...] = ()
    tactic: MaybeText = ""
    onnx_nodes: tuple[str, ...] = ()
    named_only: Hidden[bool] = False
    sparse: bool | None = None
    origin: MaybeText = ""
    time_ms: float | None = None
    macs: float | None = None

    @cached_property
    @in_json
    def role(self) -> Role:
        """What the layer is there for."""
        kind, name, words = self.layer_type.lower(), self.name, self.fused_words
        operands = self.inputs or self.outputs or self.constants
        made = name.startswith("_")  # by TensorRT's compiler
        rules: tuple[tuple[object, Role], ...] = (
            (kind in _CONTROL_TYPES or (name.startswith("__mye") and not operands), Role.CONTROL),
            (kind in _OPAQUE_TYPES or name.startswith("{ForeignNode["), Role.OPAQUE),
            (kind in _MOVING_TYPES or name.startswith("Reformatting CopyNode"), Role.REFORMAT),
            (_MATRIX_TYPE.search(kind), Role.MATRIX),
            (made and (PRODUCT_WORDS & {*words} or _MATRIX_NAME.search(name)), Role.MATRIX),
            (made and words and _MOVING_OR_CAST.issuperset(words), Role.REFORMAT),
        )
        return next((role for holds, role in rules if holds), Role.OTHER)

    @cached_property
    @in_json
    def weight_bytes(self) -> float | None:
        """What it holds: weights and scales, as far as the file lists them."""
        return total_bytes(self.constants)

    @cached_property
    @in_json
    def activation_bytes(self) -> float | None:
        """What it reads and writes."""
        return total_bytes((*self.inputs, *self.outputs))

    @property
    def bytes_moved(self) -> float | None:
        """All that goes from and to the memory in one execution, at least."""
        held = 0.0 if not self.constants else self.weight_bytes
        moved = self.activation_bytes
        return None if held is None or moved is None else held + moved

    @property
    def takes_no_time(self) -> bool:
        """Whether nothing is executed for it: another view of the same memory."""
        return self.layer_type == "NoOp"

    @property
    def changes_type(self) -> bool:
        """Whether it writes another type than it reads, as far as the file tells."""
        reads, writes = ({t.dtype for t in ts if t.dtype} for ts in (self.inputs, self.outputs))
        return bool(reads and writes) and reads != writes

    @property
    def quantizes(self) -> bool:
        """Whether it reads floating point and writes quantized values."""
        reads, writes = ({t.dtype for t in ts} for ts in (self.inputs, self.outputs))
        return bool(reads and writes) and reads <= {*FLOATS} and writes <= {*QUANTIZED}

    @cached_property
    def own_names(self) -> frozenset[str]:
        """The names that the layer's name is made of: "a + b" and "a+b_myl0_3" have a and b."""
        stem = re.sub(r"_myl\d+_\d+$", "", self.name)
        return frozenset([stem, *re.split(r" \+ | \|\| |\+", stem)])

    @cached_property
    def fused_words(self) -> tuple[str, ...]:
        """The operations a compiled kernel's name lists: ("Mul", "Add", "Max") for
        "__myl_MulAddMax_myl0_3"; empty for other names."""
        return operations(self.name)

    @cached_property
    def compiled(self) -> CompiledKernel | None:
        """The layer as a kernel whose name lists its operations; None for any other."""
        words = self.fused_words
        return CompiledKernel(words, self.inputs, self.constants, self.outputs) if words else None

    @cached_property
    @in_json
    def precision(self) -> MaybeText:
        """The type the layer computes in, as in `EngineTensor.dtype`, or "tf32"; "" if unknown.

        A matrix product runs in a quantized type when its data and, if it has any, its weights come
        in that type: weights alone are unpacked and multiplied in floating point. Where only the
        types of data are told, what else a convolution reads are residuals, and what its kernel
        multiplies stands in the kernel's name. A compiled kernel may quantize its data itself
        (`compiled`). Everything else runs in the widest floating point type that it reads or, when
        it reads none, writes or holds; a layer without any is named by the integers it reads.
        """
        if self.role is Role.OPAQUE:
            return ""
        found = self._product_precision() if self.role is Role.MATRIX else self._widest()
        tensor_float = found == "fp32" and re.search(r"tf32", self.tactic, re.IGNORECASE)
        return "tf32" if tensor_float else found

    def _product_precision(self) -> str:
        if self.compiled:
            return self.compiled.matrix_precision()
        weights = [t.dtype for t in self.constants if t.dtype in QUANTIZED]
        for dtype in QUANTIZED:
            reads = sum(t.dtype == dtype for t in self.inputs)
            if reads and (dtype in weights or reads > 1 or (len(self.inputs) == 1 and not weights)):
                return dtype
        convolution = "conv" in self.layer_type.lower()
        first = self.inputs[0].dtype if self.inputs else ""
        if convolution and first in QUANTIZED and not self.constants:
            return first
        mixed = any(t.dtype in QUANTIZED for t in self.inputs) and not self.constants
        if first and not mixed:
            return self._widest()
        # Weights of a convolution are multiplied as they are; those of others may be unpacked.
        held = weights[0] if convolution and weights else ""
        return dtype_of_kernel(self.tactic) or held or ("" if mixed or weights else self._widest())

    def _widest(self) -> str:
        found = widest(self.inputs) or widest(self.outputs) or widest(self.constants)
        integers = (t.dtype for t in (*self.inputs, *self.constants) if t.dtype)
        return found or next(integers, "")


@dataclass(frozen=True)
class OnnxNode:
    """A node of the model an engine was built from.

    Shapes hold -1 for a dynamic axis and are None when unknown.

    Attributes:
        macs: multiply-accumulates of a product, for one sample; None where they depend on an axis
            whose size is unknown, and for other nodes.
    """

    name: str
    op_type: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    input_shapes: tuple[tuple[int, ...] | None, ...] = ()
    output_shapes: tuple[tuple[int, ...] | None, ...] = ()
    macs: float | None = None


@dataclass(frozen=True)
class ModelTensor:
    """An input or output of an ONNX model.

    Attributes:
        shape: the size of each axis; of a dynamic one its name, "?" where it has none.
    """

    name: str
    dtype: MaybeText
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class UnmappedNode:
    """A node of the model that no layer of the engine computes."""

    name: str
    op_type: str


@dataclass(frozen=True)
class UnequalScales:
    """A Concat of quantized tensors whose scales differ: all but one are rescaled.

    Attributes:
        node: its name in the model.
        scales: of what it joins, in order.
    """

    node: str
    scales: tuple[float, ...]


class EventKind(StrEnum):
    """What a line of a build log is about."""

    FUSION = "fusion"
    PRECISION = "precision"
    TACTIC = "tactic"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class BuildEvent:
    """Something that happened while an engine was built, in TensorRT's words."""

    kind: EventKind
    text: str


@dataclass(frozen=True)
class EngineInfo:
    """What a file says about an engine.

    Attributes:
        layers: in execution order.
        io: inputs and outputs of the engine.
        model_inputs, model_outputs: of an ONNX model, with the names of its axes.
        source: the kind of file.
        detailed: the layers carry types; without, they are names.
        library: version of the library that built it, or "".
        nodes: of the model that was built, where the file names them.
        events: of a build log.
        notes: what the file does not say, and what to do to have it say so.
        unequal_scales: of Concat nodes, where the model is at hand.
        device: the GPU that it was built or measured on, where a file names it.
        provider: of ONNX Runtime, the execution provider.
        executions: times of whole executions, where they were given.
    """

    layers: tuple[EngineLayer, ...]
    source: InfoSource
    io: tuple[EngineTensor, ...] = ()
    detailed: bool = True
    library: MaybeText = ""
    nodes: Hidden[tuple[OnnxNode, ...]] = ()
    events: tuple[BuildEvent, ...] = ()
    notes: tuple[str, ...] = ()
    model_inputs: tuple[ModelTensor, ...] = ()
    model_outputs: tuple[ModelTensor, ...] = ()
    unequal_scales: Hidden[tuple[UnequalScales, ...]] = ()
    provider: Hidden[str] = ""
    device: Device | None = None
    executions: ExecutionTimes | None = None

    @property
    @in_json
    def unmapped_nodes(self) -> tuple[UnmappedNode, ...]:
        """Nodes of the model that no layer computes."""
        return tuple(
            UnmappedNode(n.name, n.op_type) for n in self.nodes if n.name not in self.of_node
        )

    @property
    def measured(self) -> bool:
        """Whether some layer carries a time."""
        return any(layer.time_ms is not None for layer in self.layers)

    @cached_property
    def working(self) -> tuple[EngineLayer, ...]:
        """The layers that compute or move data: those that only make others wait left out."""
        return tuple(layer for layer in self.layers if layer.role is not Role.CONTROL)

    @cached_property
    def products(self) -> frozenset[str]:
        """The nodes of the model that multiply matrices, where the file names them."""
        return frozenset(node.name for node in self.nodes if node.op_type in QUANTIZABLE_OPS)

    @cached_property
    def op_types(self) -> Mapping[str, str]:
        """The operator of each node of the model, where the file names them."""
        return {node.name: node.op_type for node in self.nodes}

    def of_role(self, role: Role) -> tuple[EngineLayer, ...]:
        """The layers that are there for one purpose."""
        return tuple(layer for layer in self.layers if layer.role is role)

    @cached_property
    def makers(self) -> Mapping[str, OnnxNode]:
        """The node of the model that computes each tensor, where the file names it."""
        return {t: node for node in self.nodes for t in node.outputs}

    @cached_property
    def readers(self) -> Mapping[str, Sequence[OnnxNode]]:
        """The nodes of the model that read each tensor, where the file names them."""
        return _by((t, node) for node in self.nodes for t in dict.fromkeys(node.inputs))

    def makers_of(self, node: OnnxNode) -> Sequence[OnnxNode]:
        """The nodes of the model that compute what a node reads."""
        return [self.makers[tensor] for tensor in node.inputs if tensor in self.makers]

    def readers_of(self, node: OnnxNode) -> Sequence[OnnxNode]:
        """The nodes of the model that read what a node writes."""
        return [reader for tensor in node.outputs for reader in self.readers.get(tensor, ())]

    @cached_property
    def layers_writing(self) -> Mapping[str, Sequence[EngineLayer]]:
        """The layers that write each tensor: several may, where a Concat costs nothing."""
        return _by((t.name, layer) for layer in self.layers for t in layer.outputs)

    @cached_property
    def layers_reading(self) -> Mapping[str, Sequence[EngineLayer]]:
        """The layers that read each tensor."""
        named = ((x, dict.fromkeys(t.name for t in x.inputs)) for x in self.layers)
        return _by((tensor, layer) for layer, tensors in named for tensor in tensors)

    @cached_property
    def of_node(self) -> Mapping[str, Sequence[EngineLayer]]:
        """The layers that compute (a part of) each ONNX node, in execution order."""
        return _by((node, x) for x in self.layers for node in dict.fromkeys(x.onnx_nodes))

    @cached_property
    def by_name(self) -> Mapping[str, OnnxNode]:
        """The nodes of the model by name, where the file names them."""
        return {node.name: node for node in self.nodes}

    def computes(self, node: str) -> bool:
        """Whether a node does more than to round, cast or hold values, as far as is known."""
        op_type = self.op_types.get(node)
        return not is_quantizer(node) if op_type is None else op_type not in HELPER_OPS

    @cached_property
    def hidden(self) -> tuple[EngineLayer, ...]:
        """The opaque layers that may hold a product: all, unless the nodes are known and others
        compute all their products."""
        told = self.products and all(
            any(layer.role is not Role.OPAQUE for layer in self.of_node.get(product, ()))
            for product in self.products
        )
        return () if told else self.of_role(Role.OPAQUE)

    def layer_of(self, node: str) -> EngineLayer | None:
        """The layer that does the work of `node`: among those that name it, the matrix product that
        bears its name, or else any matrix product, or else the first that computes."""
        layers = self.of_node.get(node, ())
        matrix = [layer for layer in layers if layer.role is Role.MATRIX]
        named = [layer for layer in matrix if node in layer.own_names]
        computing = [layer for layer in layers if layer.role is Role.OTHER]
        return next(iter([*named, *matrix, *computing, *layers]), None)


def _by(pairs: Iterable[tuple[str, T]]) -> Mapping[str, Sequence[T]]:
    found: dict[str, list[T]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
