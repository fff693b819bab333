"""What costs an engine time, and what to do about it: each finding with its evidence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from qdebug.engine_info.breakdown import known_sum
from qdebug.engine_info.layers import EngineInfo, EngineLayer, InfoSource, Role
from qdebug.engine_info.tensors import FLOATS, QUANTIZED
from qdebug.network.layers import QUANTIZABLE_OPS
from qdebug.result import MaybeText, in_json
from qdebug.wording import counted


@dataclass(frozen=True)
class Lint:
    """A finding.

    Attributes:
        code: what it is, in a word.
        layers: names of the engine's layers, or of nodes, in execution order.
        evidence: what the file shows.
        advice: what to do.
        ms: time of the layers, an upper bound of what can be saved; None where it is not measured.
    """

    code: str
    layers: tuple[str, ...]
    evidence: str
    advice: MaybeText
    ms: float | None = None

    @property
    @in_json
    def title(self) -> str:
        """What the code means."""
        return LINTS[self.code]


LINTS: Mapping[str, str] = {
    "no-tensor-cores": "products without tensor cores",
    "wide-output": "INT8 products that write FP32",
    "odd-channels": "channels that do not fill a kernel's vectors",
    "converting-copy": "copies that convert the type",
    "data-movement": "operations that only move data",
    "quantizer-alone": "QuantizeLinear as kernels of their own",
    "not-fused": "operations beside a product that are fused elsewhere",
    "unequal-scales": "unequal scales at a Concat",
    "dla-fallback": "layers that DLA does not take",
}
"""The codes, and what they mean."""


def lint(info: EngineInfo) -> tuple[Lint, ...]:
    """All findings about an engine, those of most time first. Of a model, only what it shows: which
    kernels there will be is not known before the build."""
    if info.source in (InfoSource.ONNX, InfoSource.RUNTIME):
        return tuple(_unequal_scales(info))
    if not info.detailed:
        return ()
    graph = _Graph(info)
    found = chain(
        _no_tensor_cores(info),
        _wide_output(info),
        _odd_channels(info),
        _converting_copies(info),
        _data_movement(info),
        _lone_quantizers(graph),
        _not_fused(graph),
        _unequal_scales(info),
        _dla(info),
    )
    return tuple(sorted(found, key=lambda x: -(x.ms or 0.0)))


@dataclass(frozen=True)
class _Graph:
    """The layers of an engine, and who reads what.

    Attributes:
        info: the engine.
    """

    info: EngineInfo

    @cached_property
    def makers(self) -> Mapping[str, EngineLayer]:
        return {t.name: layer for layer in self.info.layers for t in layer.outputs}

    @cached_property
    def readers(self) -> Mapping[str, Sequence[EngineLayer]]:
        found: dict[str, list[EngineLayer]] = {}
        for layer in self.info.layers:
            for name in dict.fromkeys(t.name for t in layer.inputs):
                found.setdefault(name, []).append(layer)
        return found

    @cached_property
    def outputs(self) -> frozenset[str]:
        """Outputs of the engine, as far as the file names them."""
        return frozenset(t.name for t in self.info.io)

    def reads_product(self, layer: EngineLayer) -> tuple[EngineLayer | None, list[EngineLayer]]:
        """The product whose result `layer` reads, and the copies between."""
        passed: list[EngineLayer] = []
        for tensor in layer.inputs:
            maker = self.makers.get(tensor.name)
            passed = []
            while maker is not None and _passes_on(maker) and maker.inputs:
                passed.append(maker)
                maker = self.makers.get(maker.inputs[0].name)
            if maker is not None and maker.role is Role.MATRIX:
                return maker, passed
        return None, []


def _passes_on(layer: EngineLayer) -> bool:
    """Whether a layer only moves, converts or reshapes one tensor."""
    return layer.role is Role.REFORMAT or layer.layer_type.lower() in _RESHAPING


_RESHAPING = ("shuffle", "slice", "padding", "squeeze", "unsqueeze", "reshape")


def _of(
    code: str, layers: Iterable[EngineLayer], evidence: str, advice: str, most: float | None = None
) -> Lint:
    listed = tuple(layers)
    ms = known_sum(layer.time_ms for layer in listed) if most is None else most
    return Lint(code, tuple(layer.name for layer in listed), evidence, advice, ms)


# ---- products


_TENSOR_CORES = re.compile(r"tensor\d+x\d+x\d+|[hi]mma|[hi]\d{3,5}cudnn|wgmma|warpgroupsize")
_PLAIN_CORES = re.compile(r"ffma|simt|icudnn|scudnn|sgemm|gemv|int8x4_|dp4a", re.IGNORECASE)


def _products(info: EngineInfo) -> Iterator[EngineLayer]:
    return (layer for layer in info.layers if layer.role is Role.MATRIX)


def _no_tensor_cores(info: EngineInfo) -> Iterator[Lint]:
    found = [
        x
        for x in _products(info)
        if _PLAIN_CORES.search(x.tactic) and not _TENSOR_CORES.search(x.tactic)
    ]
    if not found:
        return
    kernels = ", ".join(dict.fromkeys(x.tactic for x in found[:2]))
    yield _of(
        "no-tensor-cores",
        found,
        f"by the kernel's name: {kernels}",
        "Tensor cores need FP16, INT8 or TF32, and channels that fill their vectors (32 in INT8, 8 "
        "in FP16). A first convolution of few channels may be faster in FP16.",
    )


def _wide_output(info: EngineInfo) -> Iterator[Lint]:
    found = [
        x
        for x in _products(info)
        if x.precision in QUANTIZED and any(t.dtype == "fp32" for t in x.outputs)
    ]
    if not found:
        return
    written = known_sum(t.bytes for x in found for t in x.outputs if t.dtype == "fp32")
    size = f", {(written or 0.0) / 1e6:.3g} MB" if written else ""
    yield _of(
        "wide-output",
        found,
        f"the FP32 results of {counted(found, 'product')} with INT8 data{size}: four times the "
        "bytes of INT8",
        "Quantize what reads it too, or allow FP16 for what follows (--fp16, or FP16 in the "
        "model).",
    )


_VECTORS = {"int8": 32, "fp8": 32, "fp16": 8, "bf16": 8}
_WASTE = 0.1
"""A share of the channels that need not be mentioned."""
_FIRST_CHANNELS = 4
"""Kernels for a network's first convolution take so few channels as they are."""


def _odd_channels(info: EngineInfo) -> Iterator[Lint]:
    found: list[EngineLayer] = []
    shown: list[str] = []
    for layer in _products(info):
        vector = _VECTORS.get(layer.precision)
        if vector is None or not layer.layer_type.startswith("Cask"):  # of TensorRT's libraries
            continue
        ends = (layer.inputs[:1], layer.outputs[:1])
        channels = [t.dims[1] for ts in ends for t in ts if t.dims and len(t.dims) > 3]
        odd = [c for c in channels if c > _FIRST_CHANNELS and -c % vector > _WASTE * c]
        if odd:
            found.append(layer)
            shown += [str(c) for c in odd]
    if found:
        vectors = dict.fromkeys(str(_VECTORS[x.precision]) for x in found)
        yield _of(
            "odd-channels",
            found,
            f"channels of {', '.join(dict.fromkeys(shown))}, where a vector holds "
            f"{' or '.join(vectors)}: the rest of it is computed for nothing",
            "Round numbers of channels up to a multiple of the vector when the network is next "
            "trained.",
        )


# ---- copies and Q/DQ


def _converting_copies(info: EngineInfo) -> Iterator[Lint]:
    found = [
        x
        for x in info.layers
        if x.changes_type
        and x.origin != "QDQ"
        and not x.takes_no_time
        and not any(x.fused_words)
        and (x.role is Role.REFORMAT or x.layer_type.lower() in _MOVING)
    ]
    if not found:
        return
    pairs = Counter((_type(x, "inputs"), _type(x, "outputs")) for x in found)
    told = ", ".join(f"{n} × {a} → {b}" for (a, b), n in pairs.most_common())
    yield _of(
        "converting-copy",
        found,
        told,
        "Give neighbours one precision: quantize what stands between quantized layers, or feed the "
        "engine its input in the type of its first layer (--inputIOFormats).",
    )


_MOVING = ("slice", "shuffle", "padding", "concatenation", "gather")
_NOTABLE = 0.01
"""The least share of an engine's time that is mentioned."""


def _data_movement(info: EngineInfo) -> Iterator[Lint]:
    """Of operations of the model: those that TensorRT added are copies."""
    found = [x for x in info.layers if x.layer_type.lower() in _MOVING and not x.changes_type]
    spent = known_sum(x.time_ms for x in found)
    total = known_sum(x.time_ms for x in info.layers)
    if not spent or not total or spent < _NOTABLE * total:
        return
    kinds = Counter(x.layer_type for x in found)
    moved = known_sum(x.activation_bytes for x in found)
    size = f", {moved / 1e6:.3g} MB" if moved else ""
    yield _of(
        "data-movement",
        found,
        f"{', '.join(f'{n} × {kind}' for kind, n in kinds.most_common())}{size}",
        "Let the convolution after a padding pad, and give the network its input in the layout "
        "that it computes in, so that nothing is transposed.",
    )


def _type(layer: EngineLayer, side: str) -> str:
    tensors = layer.inputs if side == "inputs" else layer.outputs
    return next((t.dtype for t in tensors if t.dtype), "?")


def _lone_quantizers(graph: _Graph) -> Iterator[Lint]:
    """Of those that quantize what a product computes: it could write INT8 itself."""
    found, shared = [], []
    for layer in graph.info.layers:
        quantizes = layer.origin == "QDQ" and _type(layer, "inputs") in FLOATS
        if not quantizes or layer.takes_no_time or _type(layer, "outputs") not in QUANTIZED:
            continue
        maker, _ = graph.reads_product(layer)
        if maker is not None:
            found.append(layer)
            others = [x for x in graph.readers.get(layer.inputs[0].name, ()) if x is not layer]
            shared += [x for x in others if x.role is Role.MATRIX]
    if not found:
        return
    also = f", and '{shared[0].name}' reads it in floating point" if shared else ""
    yield _of(
        "quantizer-alone",
        found,
        f"{counted(found, 'kernel')} that only quantize what a product computes{also}",
        "Quantize the residual too, with a Q/DQ pair of its own and the same scale: then the "
        "product writes INT8 once, for both."
        if shared
        else "Let the pair follow the product directly, without an operation between.",
    )


# ---- fusion


def _not_fused(graph: _Graph) -> Iterator[Lint]:
    """Of operations that share a product's kernel at least twice elsewhere."""
    info = graph.info
    fused = Counter(
        _kind(node, info)
        for layer in _products(info)
        for node in layer.onnx_nodes
        if info.computes(node) and _kind(node, info) not in QUANTIZABLE_OPS
    )
    for layer in info.layers:
        nodes = [n for n in layer.onnx_nodes if info.computes(n)]
        if layer.role is not Role.OTHER or len(nodes) != 1 or fused[_kind(nodes[0], info)] < _TWICE:
            continue
        product, passed = graph.reads_product(layer)
        if product is None:
            continue
        kind = _kind(nodes[0], info)
        yield _of(
            "not-fused",
            (layer,),
            f"{kind} reads '{product.name}' and is a kernel of its own, where {fused[kind]} others "
            f"are fused; likely because {_why(graph, product, passed, layer)}",
            "Remove what stands between, or accept it where it is needed.",
        )


_TWICE = 2


def _kind(node: str, info: EngineInfo) -> str:
    """The operator of a node, by its name where the file does not say: "Relu" of "Relu_12"."""
    told = info.op_types.get(node)
    return told or re.sub(r"(?:_\d+|:\d+|\d+)+$", "", node.rpartition("/")[2])


def _why(
    graph: _Graph, product: EngineLayer, passed: Sequence[EngineLayer], layer: EngineLayer
) -> str:
    made = product.outputs[0] if product.outputs else None
    if made is not None and made.name in graph.outputs:
        return "the product's result is an output of the engine"
    others = (
        [x for x in graph.readers.get(made.name, ()) if x is not layer and x not in passed]
        if made is not None
        else []
    )
    if others:
        return f"'{others[0].name}' reads the product's result as well"
    if any(x.origin == "QDQ" for x in passed):
        return "a Q/DQ pair stands between"
    reshaping = [x for x in passed if x.role is not Role.REFORMAT]
    if reshaping:
        return f"'{reshaping[0].name}' changes the shape between"
    if any(x.changes_type for x in passed):
        return "the type changes between"
    if passed:
        return "the format changes between"
    if made is not None and made.dims is not None and any(d < 0 for d in made.dims):
        return "its shape is dynamic"
    return "no kernel has both"


# ---- scales and devices


def _unequal_scales(info: EngineInfo) -> Iterator[Lint]:
    for found in info.unequal_scales:
        copies = [
            x for x in info.layers if x.role is Role.REFORMAT and x.name.endswith(f" {found.node}")
        ]
        cost = known_sum(x.time_ms for x in copies)
        told = f"; {counted(copies, 'reformat')} in the engine" if copies else ""
        yield Lint(
            "unequal-scales",
            (found.node,),
            f"it joins INT8 of scales {', '.join(f'{s:.4g}' for s in found.scales)}{told}",
            "Give its inputs one scale, the largest: then it joins INT8 without rescaling.",
            cost,
        )


def _dla(info: EngineInfo) -> Iterator[Lint]:
    marked = [e.text for e in info.events if re.search(r"DLA.*fall|fall.*\bDLA", e.text)]
    marked += [e.text for e in info.events if re.search(r"not supported on DLA", e.text)]
    texts = list(dict.fromkeys(marked))
    if texts:
        named = [re.search(r"[Ll]ayer '?([^',]+?)'? (?:is|\()", text) for text in texts]
        yield Lint(
            "dla-fallback",
            tuple(m[1] for m in named if m),
            f"{counted(texts, 'message')} of the builder, first: {texts[0]}",
            "Each change from DLA to the GPU and back copies data: replace the operators that DLA "
            "does not take, or run the whole network on the GPU.",
        )
