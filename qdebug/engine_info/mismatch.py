"""Why a layer was built in another precision than planned, as far as the engine's layers prove it,
and what to do."""

from __future__ import annotations

import re

from qdebug.engine_info.layers import (
    BuildEvent,
    EngineInfo,
    EngineLayer,
    EventKind,
    InfoSource,
    OnnxNode,
)
from qdebug.engine_info.tensors import FLOATS, QUANTIZED
from qdebug.formats.registry import SCALED, WEIGHT_ONLY
from qdebug.network.layers import QUANTIZABLE_OPS
from qdebug.types import Precision
from qdebug.wording import option

MOVING_OPS = frozenset(
    {"Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "GatherElements"}
    | {"GatherND", "Identity", "MaxPool", "GlobalMaxPool", "Pad", "Reshape", "Slice", "Split"}
    | {"SpaceToDepth", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where"}
)
"""Operations that pass values on unchanged: in INT8 they are exact."""

_CONVERTING = frozenset({"Cast", "QuantizeLinear", "DequantizeLinear"})


def explain_mismatch(
    node: OnnxNode | None, want: Precision, built: str, layer: EngineLayer, info: EngineInfo
) -> tuple[str, str]:
    """The reason, and the next step; "" where nothing is known.

    Args:
        built: the precision that `layer` does the work of `node` in; not `want`.
    """
    if node is None or built not in FLOATS:
        return "", ""
    if want in WEIGHT_ONLY:
        return (
            f"its weight is stored in {built}, or not in this layer: dequantized during the build",
            "Ask for another block size, or do without: it saves no memory here.",
        )
    if want in SCALED:
        readers = {reader.op_type for reader in info.readers_of(node)}
        rules = (
            (
                not _dequantized(node, info),
                "what it multiplies is not quantized in the model that was built",
                "Build the engine from the model that the plan was exported to.",
            ),
            (
                info.provider.startswith("CUDA"),
                "CUDA's execution provider has no kernels for Q/DQ: it computes what they say in "
                "floating point",
                "Deploy with TensorRT or its execution providers, which have, or run FP16 on "
                "CUDA's. No need to pin it.",
            ),
            (
                info.source is InfoSource.RUNTIME and readers != {"QuantizeLinear"},
                "its operands are quantized, but no QuantizeLinear reads its result directly: ONNX "
                "Runtime, for one, multiplies in INT8 only between Q/DQ pairs on both sides",
                "Quantize what it writes too, as quantize_static of ONNX Runtime does, or run the "
                "plan on TensorRT, whose INT8 kernels write floating point. No need to pin it.",
            ),
        )
        said = next(
            (f"the builder said: {e.text}" for e in info.events if _about(e, node.name)), ""
        )
        told = f"{said or 'no reason is in the file'}; its operands are quantized in the model"
        plain = "fp32" if built == "tf32" else built
        pin = f"Pin it to {plain}: it runs so anyway, and its Q/DQ only cost accuracy."
        known = ((reason, advice) for holds, reason, advice in rules if holds)
        return next(known, (told, pin))
    operands = {t.dtype for t in (*layer.inputs, *layer.outputs)}
    around = {n.op_type for n in (*info.makers_of(node), *info.readers_of(node))}
    if want.value in operands or "Cast" not in around:
        return "", ""
    others = [n for n in layer.onnx_nodes if n != node.name and _computes(n, info)]
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    shared = f", in one kernel with '{others[0]}'{more}" if others else ""
    note = f"the library folded the casts around it: it reads and writes {built}{shared}"
    feeder = _feeder(node, info)
    pin = f"Pin '{feeder}', which feeds it, to {want} too, or use" if feeder else "Use"
    return note, f"{pin} {option('fallback_precision', want)}: then no cast can be folded."


def quantizes_dynamically(node: OnnxNode | None, want: Precision, info: EngineInfo) -> bool:
    """Whether a product was built on ONNX Runtime's CPU provider from the Q/DQ equivalent of an
    integer operator that multiplies codes of a DynamicQuantizeLinear (MatMulInteger, ConvInteger):
    the operator itself ONNX Runtime runs in INT8."""
    if node is None or want is not Precision.INT8 or not info.provider.startswith("CPU"):
        return False
    dequantizers = [m for m in info.makers_of(node) if m.op_type == "DequantizeLinear"]
    quantizers = {q.op_type for d in dequantizers for q in info.makers_of(d)}
    return "DynamicQuantizeLinear" in quantizers


def _about(event: BuildEvent, node: str) -> bool:
    kinds = (EventKind.PRECISION, EventKind.WARNING, EventKind.ERROR)
    named = re.search(rf"(?<![\w/.]){re.escape(node)}(?![\w/.])", event.text)
    return event.kind in kinds and bool(named)


def summed_in_fp32(
    node: OnnxNode | None, want: Precision, layer: EngineLayer, info: EngineInfo
) -> bool:
    """Whether an FP32 product between Casts from and to FP16 became a kernel of its own that reads
    FP16 data. Such a kernel sums in FP32, so it computes what was asked: seen with TensorRT for RTX
    1.6.1 on an H100, where 1536 terms gave the exact result rounded to FP16 once."""
    if node is None or node.op_type != "MatMul" or want is not Precision.FP32:
        return False
    makers, readers = info.makers_of(node), info.readers_of(node)
    known = len(makers) == len(node.inputs) and bool(readers)
    casts = known and {n.op_type for n in (*makers, *readers)} == {"Cast"}
    alone = not any(n != node.name and _computes(n, info) for n in layer.onnx_nodes)
    return layer.precision == "fp16" and casts and alone


def _dequantized(node: OnnxNode, info: EngineInfo) -> bool:
    """Whether both operands of a product come from a DequantizeLinear, in an engine that holds
    quantized values: the nodes may be those of the plan rather than of the model that was built."""
    makers = [info.makers.get(t) for t in node.inputs[:2]]
    if info.nodes and any(m is None or m.op_type != "DequantizeLinear" for m in makers):
        return False
    return any(
        t.dtype in QUANTIZED or "Roun" in layer.fused_words
        for layer in info.layers
        for t in (*layer.inputs, *layer.outputs, *layer.constants)
    )


def _computes(name: str, info: EngineInfo) -> bool:
    return info.op_types.get(name, "Cast") not in _CONVERTING | MOVING_OPS


def _feeder(node: OnnxNode, info: EngineInfo) -> str:
    """The nearest operation, other than a matrix product, whose result `node` multiplies."""
    for tensor in node.inputs:
        found = info.makers.get(tensor)
        while found is not None and not _computes(found.name, info):
            found = info.makers.get(found.inputs[0]) if found.inputs else None
        if found is not None and found.op_type not in QUANTIZABLE_OPS and found.inputs:
            return found.name
    return ""
