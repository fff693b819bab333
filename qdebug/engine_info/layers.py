"""The layers of an engine, whatever file they were read from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Annotated

from qdebug.results import Hidden, Json, MaybeText, in_json

FLOATS = ("fp32", "tf32", "fp16", "bf16")
"""Floating point types, widest first."""

QUANTIZED = ("int8", "fp8", "int4", "fp4")
"""Types that hold quantized values."""

_MATRIX_TYPE = re.compile(
    r"correlation|conv|gemm|matri|matmul|fullyconnected|fully connected|attention|mha|moe",
    re.IGNORECASE,
)
_CONTROL_TYPES = frozenset({"shape_call", "signal", "wait"})
_MOVING_TYPES = frozenset({"reformat", "cast", "reorder", "convert"})
_MATRIX_WORDS = frozenset({"Corr", "Conv", "Deco", "Fc", "Gemm", "Bmm", "Mha"})
_MATRIX_NAME = re.compile(r"_(gemm|mha|fmha|fc|bmm|conv)(_|$)")
_MOVING_WORDS = frozenset(
    {"Move", "Tran", "Resh", "Slic", "Conc", "Repl", "Cast", "Pad", "Copy", "Sque", "Expa"}
)


class InfoSource(StrEnum):
    """What kind of file an engine's layers were read from."""

    ONNX = "onnx"
    LAYER_INFO = "layer-info"
    BUILD_LOG = "build-log"
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
    CONTROL = "control"
    """It computes no tensor: shapes on the host, signals between streams."""


@dataclass(frozen=True)
class EngineTensor:
    """An operand of an engine's layer.

    Attributes:
        dtype: "fp32", "fp16", "bf16", "int8", "fp8", "int4", "fp4", "int32", "int64", "bool" …;
            "" when the file does not say.
        format: how it lies in memory, in TensorRT's words.
        dims: -1 for a dynamic axis; None when the file does not say.
        location: "Device", "Host" or "".
    """

    name: str
    dtype: MaybeText = ""
    format: MaybeText = ""
    dims: tuple[int, ...] | None = None
    location: Hidden[str] = ""


@dataclass(frozen=True)
class EngineLayer:
    """One layer (kernel) of an engine.

    Attributes:
        layer_type: in TensorRT's words: correlation, gemm, kgen, CaskConvolution, Reformat …
        constants: weights and scales, as far as the file tells of them.
        tactic: the kernel's name, or its number where there is no name.
        onnx_nodes: names of the ONNX nodes it computes, in the order of the file.
        named_only: the ONNX nodes were taken from the layer's name, as it has no metadata.
        sparse: the weights are 2:4 sparse; None when the file does not say.
        origin: why TensorRT added it: "REFORMAT", "QDQ", "CAST" or "".
        time_ms: of one execution; None when it was not measured.
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

    @cached_property
    @in_json
    def role(self) -> Role:
        """What the layer is there for."""
        kind = self.layer_type.lower()
        operands = self.inputs or self.outputs or self.constants
        if kind in _CONTROL_TYPES or (self.name.startswith("__mye") and not operands):
            return Role.CONTROL
        if kind in _MOVING_TYPES or self.name.startswith("Reformatting CopyNode"):
            return Role.REFORMAT
        if _MATRIX_TYPE.search(self.layer_type):
            return Role.MATRIX
        if self.name.startswith("_"):  # a name that TensorRT's compiler made
            words = self.fused_words
            if _MATRIX_WORDS.intersection(words) or _MATRIX_NAME.search(self.name):
                return Role.MATRIX
            if words and _MOVING_WORDS.issuperset(words):
                return Role.REFORMAT
        return Role.OTHER

    @cached_property
    def own_names(self) -> frozenset[str]:
        """The names that the layer's name is made of: "a + b" and "a+b_myl0_3" have a and b."""
        stem = re.sub(r"_myl\d+_\d+$", "", self.name)
        return frozenset([stem, *re.split(r" \+ | \|\| |\+", stem)])

    @cached_property
    def fused_words(self) -> tuple[str, ...]:
        """The operations a compiled kernel's name lists: ("Mul", "Add", "Max") for
        "__myl_MulAddMax_myl0_3"; empty for other names."""
        match = re.match(r"__myl_([A-Z][A-Za-z0-9]*)_", self.name)
        return tuple(re.findall(r"[A-Z][a-z0-9]*", match[1])) if match else ()

    @cached_property
    @in_json
    def precision(self) -> MaybeText:
        """The type the layer computes in, as in `EngineTensor.dtype`, or "tf32"; "" if unknown.

        A matrix product runs in a quantized type when its data and, if it has any, its weights come
        in that type: weights alone are unpacked and multiplied in floating point. Everything else
        runs in the widest floating point type that it reads or, when it reads none, writes or
        holds; a layer without any is named by the integers it reads.
        """
        found = self._matrix_precision() if self.role is Role.MATRIX else ""
        for tensors in (self.inputs, self.outputs, self.constants):
            found = found or _widest(tensors)
        found = found or _integer(self.inputs) or _integer(self.constants)
        tensor_float = found == "fp32" and re.search(r"tf32", self.tactic, re.IGNORECASE)
        return "tf32" if tensor_float else found

    def _matrix_precision(self) -> str:
        for dtype in QUANTIZED:
            reads = sum(t.dtype == dtype for t in self.inputs)
            weights = [t.dtype for t in self.constants if t.dtype in QUANTIZED]
            if reads and (dtype in weights or reads > 1 or (len(self.inputs) == 1 and not weights)):
                return dtype
        return ""


@dataclass(frozen=True)
class OnnxNode:
    """A node of the model an engine was built from.

    Shapes hold -1 for a dynamic axis and are None when unknown.
    """

    name: str
    op_type: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    input_shapes: tuple[tuple[int, ...] | None, ...] = ()
    output_shapes: tuple[tuple[int, ...] | None, ...] = ()


@dataclass(frozen=True)
class UnmappedNode:
    """A node of the model that no layer of the engine computes."""

    name: str
    op_type: str


class EventKind(StrEnum):
    """What a line of a build log tells of."""

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
    """What a file tells of an engine.

    Attributes:
        layers: in execution order.
        io: inputs and outputs of the engine.
        source: the kind of file.
        detailed: the layers carry types; without, they are names.
        library: version of the library that built it, or "".
        nodes: of the model that was built, where the file names them.
        events: of a build log.
        notes: what the file does not say, and what to do to have it say so.
    """

    layers: tuple[EngineLayer, ...]
    source: InfoSource
    io: tuple[EngineTensor, ...] = ()
    detailed: bool = True
    library: MaybeText = ""
    nodes: Hidden[tuple[OnnxNode, ...]] = ()
    events: tuple[BuildEvent, ...] = ()
    notes: tuple[str, ...] = ()

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
    def op_types(self) -> Mapping[str, str]:
        """The operator of each node of the model, where the file names them."""
        return {node.name: node.op_type for node in self.nodes}

    @cached_property
    def of_node(self) -> Mapping[str, tuple[EngineLayer, ...]]:
        """The layers that compute (a part of) each ONNX node, in execution order."""
        found: dict[str, list[EngineLayer]] = {}
        for layer in self.layers:
            for node in dict.fromkeys(layer.onnx_nodes):
                found.setdefault(node, []).append(layer)
        return {node: tuple(layers) for node, layers in found.items()}

    def layer_of(self, node: str) -> EngineLayer | None:
        """The layer that does the work of `node`: among those that name it, the matrix product that
        bears its name, or else any matrix product, or else the first that computes."""
        layers = self.of_node.get(node, ())
        matrix = [layer for layer in layers if layer.role is Role.MATRIX]
        named = [layer for layer in matrix if node in layer.own_names]
        computing = [layer for layer in layers if layer.role is Role.OTHER]
        return next(iter([*named, *matrix, *computing, *layers]), None)


def canonical_dtype(text: str) -> str:
    """TensorRT's word for an element type ("Half", "kHALF", "Row major linear FP16 format") as in
    `EngineTensor.dtype`; "" when the text names none."""
    words = re.findall(r"[a-z]+\d*(?:e\d+m\d+)?", text.lower().replace("float32", "fp32"))
    for word in words:
        name = _DTYPES.get(word.removeprefix("k") if word not in _DTYPES else word)
        if name:
            return name
    return ""


_DTYPES = {
    **dict.fromkeys(("float", "fp32"), "fp32"),
    **dict.fromkeys(("half", "fp16", "float16"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    "int8": "int8",
    **dict.fromkeys(("fp8", "float8", "fp8e4m3", "float8e4m3fn"), "fp8"),
    "int4": "int4",
    **dict.fromkeys(("fp4", "float4", "fp4e2m1"), "fp4"),
    "int32": "int32",
    "int64": "int64",
    "uint8": "uint8",
    "bool": "bool",
}


def _widest(tensors: Sequence[EngineTensor]) -> str:
    found = {t.dtype for t in tensors}
    return next((dtype for dtype in FLOATS if dtype in found), "")


def _integer(tensors: Sequence[EngineTensor]) -> str:
    return next((t.dtype for t in tensors if t.dtype), "")
