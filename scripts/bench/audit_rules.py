"""What a matrix product of an engine multiplies, by rules that share nothing with qdebug's audit.

A serialized engine of TensorRT for RTX holds the CUDA sources of the kernels that it compiles on
the user's machine, in plain text. They show the types of every multiplication:

1. A product whose operands do not both come from a DequantizeLinear is not INT8.
2. A kernel of the library has no source. Its product is INT8 when it reads Int8 data, and either an
   Int8 constant with the elements of the weights, or more that pad them, or other Int8 data. In
   floating point it has the one type of its operands, or that of the constant as large as the
   weights.
3. A compiled kernel with a convolution loop multiplies in the type that the loop is made for.
4. Any other compiled kernel multiplies in the type of its multiplications, if they have but one, or
   else in that of those that take something from the weights and something from the data.

5. A MatMul whose kernel takes in Casts at all that it reads and writes is summed in FP32, although
   it reads FP16: that is FP32 built as asked (measured on GPUs by tests/gpu/test_gpu_half.py).

Which kernel does the work: the one that bears the node's name, or those that hold a constant as
large as the weights, or those of the library, or all that name the node; when these do not agree
there is no answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from qdebug.engine_info.layers import EngineInfo, EngineLayer, OnnxNode

_TYPES = {"int8": "int8", "half": "fp16", "float": "fp32"}
_FLOATS = {"fp32", "fp16"}
_PRODUCT = re.compile(r"__myln_(?:mul|fma)___myln_(\w+?)___myln_(\w+?)\(")
_LIBRARY = ("correlation", "gemm", "deconv", "runtime_fusion")
_MOST_PADDING = 32


@dataclass(frozen=True)
class Truth:
    """The rules, applied to one engine.

    Attributes:
        engine: serialized.
        info: its layers, and the nodes of the model that was built.
    """

    engine: bytes
    info: EngineInfo

    def of(self, product: str) -> str:
        """The type a node multiplies in: "int8", "fp16" or "fp32"; "" if no rule tells."""
        node = next(n for n in self.info.nodes if n.name == product)
        weight = node.input_shapes[1] or ()
        types = {self._type(layer, weight) for layer in self._kernels(node, weight)}
        found = types.pop() if len(types) == 1 else ""
        return "" if found == "int8" and not self._is_quantized(node) else found

    def between_casts(self, product: str) -> bool:
        """Whether rule 5 is about a node."""
        node = next(n for n in self.info.nodes if n.name == product)
        around = [n for n in self.info.nodes if {*n.outputs} & {*node.inputs}]
        around += [n for n in self.info.nodes if {*n.inputs} & {*node.outputs}]
        taken = {x for layer in self._kernels(node, ()) for x in layer.onnx_nodes}
        casts = all(n.op_type == "Cast" and n.name in taken for n in around)
        return node.op_type == "MatMul" and len(around) > 2 and casts

    def _is_quantized(self, node: OnnxNode) -> bool:
        made = {t for n in self.info.nodes if n.op_type == "DequantizeLinear" for t in n.outputs}
        return made.issuperset(node.inputs[:2])

    def _kernels(self, node: OnnxNode, weight: Sequence[int]) -> Sequence[EngineLayer]:
        naming = [layer for layer in self.info.layers if node.name in layer.onnx_nodes]
        own = [x for x in naming if _is_library(x) and node.name in _stem(x.name).split("+")]
        holding = [x for x in naming if any(_fits(t.dims, weight) for t in x.constants)]
        library = [x for x in naming if _is_library(x)]
        multiplying = [x for x in naming if x in library or self._multiplies(x)]
        return own or [x for x in holding if x in multiplying] or library or multiplying

    def _multiplies(self, layer: EngineLayer) -> bool:
        source = self._sources.get(layer.tactic, "")
        return "conv_1d_kernel<" in source or bool(_PRODUCT.search(source))

    def _type(self, layer: EngineLayer, weight: Sequence[int]) -> str:
        source = self._sources.get(layer.tactic)
        if source is None:
            return _library_type(layer, weight)
        loops = set(re.findall(r"conv_1d_kernel<\d+, __myln_(\w+),", source))
        if loops:
            return _only(loops)
        pairs = set(_PRODUCT.findall(source))
        if len(pairs) == 1:
            return _only({*next(iter(pairs))})
        return _only(self._weight_products(layer, source, weight))

    def _weight_products(
        self, layer: EngineLayer, source: str, weight: Sequence[int]
    ) -> Iterable[str]:
        """The types of multiplications that take one factor from the weights, one from the data."""
        names = self._arguments(layer.tactic)
        fitting = [_stem(t.name) for t in layer.constants if _fits(t.dims, weight)]
        held = {_stem(t.name) for t in layer.constants}
        weights = {i for i, name in enumerate(names) if name in (fitting or held)}
        data = {i for i, name in enumerate(names) if name not in held}
        return _met(source, weights, data)

    def _arguments(self, kernel: str) -> list[str]:
        """What a kernel is called with, by name."""
        found = re.search(rb"fqn=" + kernel.encode() + rb" args=\{ (.*?)\} ", self.engine)
        return re.findall(r'"([^"]*)"', found[1].decode()) if found else []

    @cached_property
    def _sources(self) -> Mapping[str, str]:
        """The source of each compiled kernel."""
        found = {}
        for match in re.finditer(rb'extern "C" __global__ void[^\n(]*?(\w+)\(', self.engine):
            end = self.engine.index(b"\0", match.start())
            found[match[1].decode()] = self.engine[match.start() : end].decode("latin1")
        return found


def _is_library(layer: EngineLayer) -> bool:
    return layer.layer_type in _LIBRARY


def _stem(name: str) -> str:
    return re.sub(r"_myl\d+(_\d+)?$", "", name)


def _only(types: Iterable[str]) -> str:
    found = {*types}
    return _TYPES.get(found.pop(), "") if len(found) == 1 else ""


def _library_type(layer: EngineLayer, weight: Sequence[int]) -> str:
    fitting = [t.dtype for t in layer.constants if _fits(t.dims, weight)]
    reads = [t.dtype for t in layer.inputs]
    sizes = [math.prod(t.dims or ()) for t in layer.constants if t.dtype == "int8"]
    held = any(size >= math.prod(weight) for size in sizes)
    if "int8" in reads and (held or reads == ["int8", "int8"]):
        return "int8"
    matrices = {t.dtype for t in layer.constants if len(_long(t.dims)) > 1}
    for types in ({*reads} | matrices, {*fitting}, _FLOATS & ({*reads} | matrices)):
        if len(types) == 1 and types <= _FLOATS:
            return types.pop()
    return ""


def _fits(dims: Sequence[int] | None, weight: Sequence[int]) -> bool:
    """Whether a constant may be the weights: as large, or padded by a few along each axis."""
    if not dims or not _long(weight):
        return False
    if sorted(_long(dims)) == sorted(_long(weight)):
        return True
    pairs = list(zip(dims, weight, strict=False))
    return len(dims) == len(weight) and all(w <= d < w + _MOST_PADDING for d, w in pairs)


def _long(dims: Sequence[int] | None) -> list[int]:
    return [d for d in dims or () if d != 1]


def _met(source: str, weights: set[int], data: set[int]) -> set[str]:
    """Follows every value of a kernel back to the arguments that it was computed from."""
    signature = re.search(r"\((.*?)\)\s*\{", source, re.DOTALL)
    arguments = re.findall(r"(__v\d+)\s*(?:,|$)", signature[1]) if signature else []
    origins: dict[str, set[int]] = {name: {i} for i, name in enumerate(arguments)}
    found = set()
    for target, value in re.findall(r"(__v\d+)[\w.\[\]]*\s*=\s*(.*);", source):
        passed = re.search(r"live_inouts\[(\d+)\]", value)
        operands = [origins.get(name, set()) for name in re.findall(r"__v\d+", value)]
        product = _PRODUCT.match(value)
        if product and len(operands) > 1:
            one, other = operands[:2]
            for a, b in ((one, other), (other, one)):
                if a & weights and b & data and not b & weights:
                    found.update(product.groups())
        made = {int(passed[1])} if passed else set().union(*operands)
        origins[target] = made if passed else origins.get(target, set()) | made
    return found
