"""Requested vs. built precision: does each layer of an engine run as was requested?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from qdebug.engine_info.files.layer_info import NAMES_ONLY
from qdebug.engine_info.layers import EngineInfo, EngineLayer, OnnxNode, Role
from qdebug.engine_info.mismatch import (
    MOVING_OPS,
    explain_mismatch,
    quantizes_dynamically,
    summed_in_fp32,
)
from qdebug.engine_info.products import product_of
from qdebug.engine_info.tensors import FLOATS
from qdebug.errors import UsageError
from qdebug.formats.registry import WEIGHT_FORMAT_OF, WEIGHT_ONLY
from qdebug.network.layers import QUANTIZABLE_OPS
from qdebug.result import Hidden, MaybeText, in_json
from qdebug.types import Precision


class AuditVerdict(StrEnum):
    """What became of a requested precision."""

    SAME = "as-planned"
    MISMATCH = "mismatch"
    FUSED = "fused"
    """Computed inside another node's kernel or with the cast of its data, or exact in any
    precision."""
    GONE = "gone"
    """No layer names it: folded into a constant, or merged into a neighbour."""
    UNKNOWN = "unknown"
    """The file does not say."""


@dataclass(frozen=True)
class NodePlacement:
    """An ONNX node, and the layers of the engine that compute it; none for one that vanished."""

    name: str
    engine_layers: tuple[str, ...]


@dataclass(frozen=True)
class AuditedLayer:
    """A layer (or, without a plan, a node) and the precision it was built in.

    Attributes:
        built: the precision found, as in `EngineTensor.dtype`, or "tf32"; "" if the engine's file
            does not say.
        verdict: by the layer's main node.
        note: the reason for the verdict, where it is not obvious.
        advice: what to do about a mismatch, where something is known.
        engine_layer: the engine's layer that does its work, or "".
        nodes: of a plan's layer, where each of its ONNX nodes went.
        as_equivalent: built from the Q/DQ equivalent of an integer operator that quantizes
            dynamically, so that the engine computes it otherwise than the file's own operator.
    """

    name: str
    op_type: str
    requested: Precision
    built: MaybeText
    verdict: AuditVerdict
    note: MaybeText = ""
    advice: MaybeText = ""
    engine_layer: MaybeText = ""
    nodes: tuple[NodePlacement, ...] = ()
    as_equivalent: Hidden[bool] = False


@dataclass(frozen=True)
class Audit:
    """Requested vs. built precision, of every layer in the order requested."""

    layers: tuple[AuditedLayer, ...]

    @property
    @in_json
    def passed(self) -> bool:
        """Whether no layer was built in another precision than requested."""
        return not self.mismatches

    @property
    @in_json
    def mismatches(self) -> tuple[str, ...]:
        """Layers that were built in another precision."""
        return tuple(x.name for x in self.mismatched)

    @property
    @in_json
    def unknown(self) -> tuple[str, ...]:
        """Layers of which the file says nothing."""
        return tuple(x.name for x in self.layers if x.verdict is AuditVerdict.UNKNOWN)

    @property
    def mismatched(self) -> tuple[AuditedLayer, ...]:
        """As `mismatches`, with what is known of them."""
        return tuple(x for x in self.layers if x.verdict is AuditVerdict.MISMATCH)


def audit(requested: Mapping[str, Precision], info: EngineInfo) -> Audit:
    """Compare the precision requested for each ONNX node with the one that was built.

    A matrix product is judged by the type of what is multiplied (`products.product_of`), not
    by what its kernel reads. TF32 counts as FP32, and is noted.

    Args:
        requested: node name -> precision. For a plan, the layers' names, which are their anchors'.
        info: of the engine, from a detailed source.

    Raises:
        UsageError: the source holds names only, or is of another model.
    """
    if not info.detailed:
        raise UsageError(
            "the engine's layers carry no precision, so nothing can be audited",
            NAMES_ONLY,
            code="QD-USAGE-AUDIT-NAMES-ONLY",
        )
    nodes = {node.name: node for node in info.nodes}
    _check_same_model(requested, nodes, info)
    return Audit(tuple(_row(name, want, nodes.get(name), info) for name, want in requested.items()))


def _check_same_model(
    requested: Mapping[str, Precision], nodes: Mapping[str, OnnxNode], info: EngineInfo
) -> None:
    """Single layers may be merged into others; not all products, nor half of a log's nodes."""
    products = [n for n in requested if n in nodes and nodes[n].op_type in QUANTIZABLE_OPS]
    absent = [n for n in requested if n not in info.of_node]
    strange = [n for n in absent if n not in nodes]
    lost = all(n not in info.of_node for n in products or requested)
    if requested and (lost or (nodes and len(strange) > len(requested) / 2)):
        raise UsageError(
            f"{len(absent)} of the {len(requested)} requested layers are not in the engine, for "
            f"example '{absent[0]}'",
            "Give the engine that was built from this model.",
            code="QD-USAGE-AUDIT-OTHER-MODEL",
        )


def _row(name: str, want: Precision, node: OnnxNode | None, info: EngineInfo) -> AuditedLayer:
    op_type = node.op_type if node else ""
    layer = info.layer_of(name)
    if layer is None:
        verdict, note = _absent(op_type, node, info)
        return AuditedLayer(name, op_type, want, "", verdict, note)
    if layer.role is Role.OPAQUE:
        unknown = AuditVerdict.UNKNOWN, "inside a layer that does not list its kernels"
        return AuditedLayer(name, op_type, want, "", *unknown, engine_layer=layer.name)
    if op_type in QUANTIZABLE_OPS or (not op_type and name in layer.own_names):
        found, built = product_of(name, info)
        layer = found or layer
        verdict, note = _judged_product(want, built, layer, info)
    else:
        built = layer.precision
        verdict, note = _judged(op_type, want, layer)
    advice, as_equivalent = "", False
    if verdict is AuditVerdict.MISMATCH and summed_in_fp32(node, want, layer, info):
        verdict, note = (
            AuditVerdict.FUSED,
            "FP16 data, summed in FP32: the casts around it are folded",
        )
    elif verdict is AuditVerdict.MISMATCH and quantizes_dynamically(node, want, info):
        verdict, as_equivalent = AuditVerdict.UNKNOWN, True
        note = "built as its Q/DQ equivalent, and not as the file has it"
    elif verdict is AuditVerdict.MISMATCH:
        note, advice = explain_mismatch(node, want, built, layer, info)
    return AuditedLayer(
        name, op_type, want, built, verdict, note, advice, layer.name, as_equivalent=as_equivalent
    )


def _absent(op_type: str, node: OnnxNode | None, info: EngineInfo) -> tuple[AuditVerdict, str]:
    if info.nodes and node is None:
        return AuditVerdict.UNKNOWN, "not a node of the model that was built"
    if info.hidden:
        return (
            AuditVerdict.UNKNOWN,
            "no layer names it; one that does not list its nodes may hold it",
        )
    if any(layer.named_only for layer in info.layers):
        return AuditVerdict.UNKNOWN, "no layer name mentions it"
    if op_type in QUANTIZABLE_OPS:
        return AuditVerdict.UNKNOWN, "no layer names it"
    if op_type in MOVING_OPS:
        return AuditVerdict.GONE, "no layer names it; it only moves data"
    return AuditVerdict.GONE, "no layer names it"


_STORED: Mapping[Precision, str] = {
    Precision.INT4: "int4",
    **{p: WEIGHT_FORMAT_OF[p].name for p in WEIGHT_ONLY},
}
"""The type in which weights are stored that are multiplied in floating point."""


def _judged_product(
    want: Precision, built: str, layer: EngineLayer, info: EngineInfo
) -> tuple[AuditVerdict, str]:
    """The verdict of a matrix product that multiplies in the type `built`, "" if unknown."""
    if not layer.precision and not layer.compiled:
        return AuditVerdict.UNKNOWN, "the layer carries no type"
    if want in _STORED and built in (*FLOATS, "") and _stores(layer, _STORED[want], info):
        return AuditVerdict.SAME, f"its weight is stored so, and multiplied in {built or 'a float'}"
    if not built:
        return AuditVerdict.UNKNOWN, "its kernel does not tell what type it multiplies in"
    if built == want.value and built != layer.precision:
        return AuditVerdict.FUSED, f"in one kernel with the cast of its data to {want}"
    return _compared(want, built) or (AuditVerdict.MISMATCH, "")


def _stores(layer: EngineLayer, codes: str, info: EngineInfo) -> bool:
    """Whether a layer holds constants of such codes, or what feeds it does and is no product: a
    kernel of its own may dequantize what the next one multiplies."""
    waiting, seen = [layer], {layer.name}
    while waiting:
        one = waiting.pop()
        if any(t.dtype == codes for t in one.constants):
            return True
        reads = {t.name for t in one.inputs}
        for feeder in info.layers:
            feeds = feeder.role is not Role.MATRIX and feeder.name not in seen
            if feeds and any(t.name in reads for t in feeder.outputs):
                seen.add(feeder.name)
                waiting.append(feeder)
    return False


def _compared(want: Precision, built: str) -> tuple[AuditVerdict, str] | None:
    if built == want.value:
        return AuditVerdict.SAME, ""
    if want is Precision.FP32 and built == "tf32":
        return AuditVerdict.SAME, "in TF32: 10 bits of mantissa; clear the TF32 flag for full FP32"
    return None


def _judged(op_type: str, want: Precision, layer: EngineLayer) -> tuple[AuditVerdict, str]:
    """The verdict of a node that is not a matrix product."""
    built = layer.precision
    same = _compared(want, built)
    if same:
        return same
    if layer.role is Role.MATRIX:
        return AuditVerdict.FUSED, "inside a matrix product's kernel"
    if not built:
        return AuditVerdict.UNKNOWN, "the layer carries no type"
    if op_type in MOVING_OPS:
        return AuditVerdict.FUSED, "passes values on unchanged"
    if built == "int8":
        return AuditVerdict.MISMATCH, ""
    if built not in FLOATS:
        return AuditVerdict.UNKNOWN, "integer work"
    operands = {t.dtype for t in (*layer.inputs, *layer.outputs, *layer.constants)}
    if want.value in operands or "Cast" in layer.fused_words:
        return AuditVerdict.FUSED, f"one kernel with {built} and {want}"
    return AuditVerdict.MISMATCH, ""
