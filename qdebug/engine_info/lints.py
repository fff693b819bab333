"""What costs an engine time, and what to do about it: each finding with its evidence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from qdebug.engine_info.layers import EngineInfo, EngineLayer, InfoSource, Role
from qdebug.engine_info.tensors import QUANTIZED, known_sum
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
    products = info.of_role(Role.MATRIX)
    found = [
        *_of("no-tensor-cores", *_no_tensor_cores(products)),
        *_of("wide-output", *_wide_output(products)),
        *_of("odd-channels", *_odd_channels(products)),
        *_of("converting-copy", *_converting_copies(info)),
        *_of("data-movement", *_data_movement(info)),
        *_of("quantizer-alone", *_lone_quantizers(info)),
        *_not_fused(info),
        *_unequal_scales(info),
        *_dla(info),
    ]
    return tuple(sorted(found, key=lambda x: -(x.ms or 0.0)))


Finding = tuple[Sequence[EngineLayer], str, str]
"""Layers, which may be none, the evidence and the advice."""


def _of(code: str, layers: Sequence[EngineLayer], evidence: str, advice: str) -> Iterator[Lint]:
    if layers:
        names = tuple(layer.name for layer in layers)
        yield Lint(code, names, evidence, advice, known_sum(layer.time_ms for layer in layers))


# ---- products


_TENSOR_CORES = re.compile(r"tensor\d+x\d+x\d+|[hi]mma|[hi]\d{3,5}cudnn|wgmma|warpgroupsize")
_PLAIN_CORES = re.compile(r"ffma|simt|icudnn|scudnn|sgemm|gemv|int8x4_|dp4a", re.IGNORECASE)


def _no_tensor_cores(products: Iterable[EngineLayer]) -> Finding:
    plain = (x for x in products if _PLAIN_CORES.search(x.tactic))
    found = [x for x in plain if not _TENSOR_CORES.search(x.tactic)]
    return (
        found,
        f"by the kernel's name: {', '.join(dict.fromkeys(x.tactic for x in found[:2]))}",
        "Tensor cores need FP16, INT8 or TF32, and channels that fill their vectors (32 in INT8, 8 "
        "in FP16). A first convolution of few channels may be faster in FP16.",
    )


def _wide_output(products: Iterable[EngineLayer]) -> Finding:
    quantized = (x for x in products if x.precision in QUANTIZED)
    found = [x for x in quantized if any(t.dtype == "fp32" for t in x.outputs)]
    written = known_sum(t.bytes for x in found for t in x.outputs if t.dtype == "fp32")
    return (
        found,
        f"the FP32 results of {counted(found, 'product')} with INT8 data{_size(written)}: four "
        "times the bytes of INT8",
        "Quantize what reads it too, or allow FP16 for what follows (--fp16, or FP16 in the "
        "model).",
    )


_VECTORS = {"int8": 32, "fp8": 32, "fp16": 8, "bf16": 8}
_WASTE = 0.1
"""A share of the channels that need not be mentioned."""
_FIRST_CHANNELS = 4
"""Kernels for a network's first convolution take so few channels as they are."""


def _odd_channels(products: Iterable[EngineLayer]) -> Finding:
    found = [x for x in products if x.layer_type.startswith("Cask") and _odd(x)]
    channels = dict.fromkeys(str(c) for x in found for c in _odd(x))
    vectors = dict.fromkeys(str(_VECTORS[x.precision]) for x in found)
    return (
        found,
        f"channels of {', '.join(channels)}, where a vector holds {' or '.join(vectors)}: the rest "
        "of it is computed for nothing",
        "Round numbers of channels up to a multiple of the vector when the network is next "
        "trained.",
    )


def _odd(layer: EngineLayer) -> list[int]:
    """The channels that a product of TensorRT's libraries reads or writes and that are odd."""
    vector = _VECTORS.get(layer.precision, 1)
    ends = (*layer.inputs[:1], *layer.outputs[:1])
    channels = [t.dims[1] for t in ends if t.dims and len(t.dims) > 3]
    return [c for c in channels if c > _FIRST_CHANNELS and -c % vector > _WASTE * c]


# ---- copies and Q/DQ


_MOVING = ("slice", "shuffle", "padding", "concatenation", "gather")
_NOTABLE = 0.01
"""The least share of an engine's time that is mentioned."""


def _converting_copies(info: EngineInfo) -> Finding:
    changing = (x for x in info.layers if x.changes_type and not x.takes_no_time)
    found = [
        x
        for x in changing
        if x.origin != "QDQ" and not x.fused_words
        if x.role is Role.REFORMAT or x.layer_type.lower() in _MOVING
    ]
    types = ([[t.dtype for t in ts if t.dtype] for ts in (x.inputs, x.outputs)] for x in found)
    pairs = Counter(f"{reads[0]} → {writes[0]}" for reads, writes in types)
    return (
        found,
        ", ".join(f"{n} × {pair}" for pair, n in pairs.most_common()),
        "Give neighbours one precision: quantize what stands between quantized layers, or feed the "
        "engine its input in the type of its first layer (--inputIOFormats).",
    )


def _data_movement(info: EngineInfo) -> Finding:
    """Of operations of the model: those that TensorRT added are copies."""
    moving = (x for x in info.layers if x.layer_type.lower() in _MOVING)
    found = [x for x in moving if not x.changes_type]
    spent = known_sum(x.time_ms for x in found) or 0.0
    total = known_sum(x.time_ms for x in info.layers)
    kinds = Counter(x.layer_type for x in found).most_common()
    moved = known_sum(x.activation_bytes for x in found)
    return (
        found if total and spent >= _NOTABLE * total else (),
        f"{', '.join(f'{n} × {kind}' for kind, n in kinds)}{_size(moved)}",
        "Let the convolution after a padding pad, and give the network its input in the layout "
        "that it computes in, so that nothing is transposed.",
    )


def _size(count: float | None) -> str:
    return f", {count / 1e6:.3g} MB" if count else ""


def _lone_quantizers(info: EngineInfo) -> Finding:
    """Of those that quantize what a product computes: it could write INT8 itself."""
    alone = (x for x in info.layers if x.origin == "QDQ" and not x.takes_no_time)
    found = [x for x in alone if x.quantizes and _product_read(x, info)[0]]
    also = (x for layer in found for x in info.layers_reading[layer.inputs[0].name])
    shared = next((x for x in also if x.role is Role.MATRIX), None)
    evidence = f"{counted(found, 'kernel')} that only quantize what a product computes"
    if shared is None:
        return (
            found,
            evidence,
            "Let the pair follow the product directly, without an operation between.",
        )
    return (
        found,
        f"{evidence}, and '{shared.name}' reads it in floating point",
        "Quantize the residual too, with a Q/DQ pair of its own and the same scale: then the "
        "product writes INT8 once, for both.",
    )


# ---- fusion


_RESHAPING = ("shuffle", "slice", "padding", "squeeze", "unsqueeze", "reshape")
_TWICE = 2


def _product_read(
    layer: EngineLayer, info: EngineInfo
) -> tuple[EngineLayer | None, list[EngineLayer]]:
    """The product whose result a layer reads, and the copies and reshapes between."""
    for tensor in layer.inputs:
        passed: list[EngineLayer] = []
        name = tensor.name
        while makers := info.layers_writing.get(name):
            maker = makers[-1]
            if maker.role is Role.MATRIX:
                return maker, passed
            moves = maker.role is Role.REFORMAT or maker.layer_type.lower() in _RESHAPING
            if not moves or not maker.inputs or maker in passed:
                break
            passed.append(maker)
            name = maker.inputs[0].name
    return None, []


def _not_fused(info: EngineInfo) -> Iterator[Lint]:
    """Of operations that share a product's kernel at least twice elsewhere."""
    beside = (n for x in info.of_role(Role.MATRIX) for n in x.onnx_nodes if info.computes(n))
    fused = Counter(_kind(node, info) for node in beside)
    for layer in info.of_role(Role.OTHER):
        kinds = [_kind(n, info) for n in layer.onnx_nodes if info.computes(n)]
        product, passed = _product_read(layer, info)
        if len(kinds) != 1 or product is None or kinds[0] in QUANTIZABLE_OPS:
            continue
        if fused[kinds[0]] >= _TWICE:
            yield from _of(
                "not-fused",
                [layer],
                f"{kinds[0]} reads '{product.name}' and is a kernel of its own, where "
                f"{fused[kinds[0]]} others are fused; likely because "
                f"{_why(info, product, passed, layer)}",
                "Remove what stands between, or accept it where it is needed.",
            )


def _kind(node: str, info: EngineInfo) -> str:
    """The operator of a node, by its name where the file does not say: "Relu" of "Relu_12"."""
    told = info.op_types.get(node)
    return told or re.sub(r"(?:_\d+|:\d+|\d+)+$", "", node.rpartition("/")[2])


def _why(
    info: EngineInfo, product: EngineLayer, passed: Sequence[EngineLayer], layer: EngineLayer
) -> str:
    made = product.outputs[0]
    readers = info.layers_reading.get(made.name, ())
    other = next((x.name for x in readers if x is not layer and x not in passed), None)
    reshaping = next((x.name for x in passed if x.role is not Role.REFORMAT), None)
    reasons = (
        (made.name in {t.name for t in info.io},
         "the product's result is an output of the engine"),
        (other is not None, f"'{other}' reads the product's result as well"),
        (any(x.origin == "QDQ" for x in passed), "a Q/DQ pair stands between"),
        (reshaping is not None, f"'{reshaping}' changes the shape between"),
        (any(x.changes_type for x in passed), "the type changes between"),
        (bool(passed), "the format changes between"),
        (made.dims is not None and any(d < 0 for d in made.dims), "its shape is dynamic"),
    )  # fmt: skip
    return next((reason for holds, reason in reasons if holds), "no kernel has both")


# ---- scales and devices


def _unequal_scales(info: EngineInfo) -> Iterator[Lint]:
    for found in info.unequal_scales:
        copies = [x for x in info.of_role(Role.REFORMAT) if x.name.endswith(f" {found.node}")]
        told = f"; {counted(copies, 'reformat')} in the engine" if copies else ""
        yield Lint(
            "unequal-scales",
            (found.node,),
            f"it joins INT8 of scales {', '.join(f'{s:.4g}' for s in found.scales)}{told}",
            "Give its inputs one scale, the largest: then it joins INT8 without rescaling.",
            known_sum(x.time_ms for x in copies),
        )


_DLA = re.compile(r"DLA.*fall|fall.*\bDLA|not supported on DLA")


def _dla(info: EngineInfo) -> Iterator[Lint]:
    texts = list(dict.fromkeys(e.text for e in info.events if _DLA.search(e.text)))
    named = (re.search(r"[Ll]ayer '?([^',]+?)'? (?:is|\()", text) for text in texts)
    if texts:
        yield Lint(
            "dla-fallback",
            tuple(m[1] for m in named if m),
            f"{counted(texts, 'message')} of the builder, first: {texts[0]}",
            "Each change from DLA to the GPU and back copies data: replace the operators that DLA "
            "does not take, or run the whole network on the GPU.",
        )
