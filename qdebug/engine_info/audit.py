"""Asked against built: does each layer of an engine run in the precision that the plan gave it?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from qdebug.engine_info.layer_info import NAMES_ONLY
from qdebug.engine_info.layers import FLOATS, EngineInfo, EngineLayer, OnnxNode, Role
from qdebug.engine_info.mismatch import (
    MOVING_OPS,
    explain_mismatch,
    summed_in_fp32,
)
from qdebug.errors import UsageError
from qdebug.model.layers import QUANTIZABLE_OPS
from qdebug.types import Precision


class Verdict(StrEnum):
    """What became of what was asked."""

    SAME = "as-planned"
    MISMATCH = "mismatch"
    FUSED = "fused"
    """Computed inside another node's kernel or with the cast of its data, or exact in any
    precision."""
    GONE = "gone"
    """Folded into a constant or merged into a neighbour: nothing runs for it."""
    UNKNOWN = "unknown"
    """The file does not tell."""


@dataclass(frozen=True)
class AuditRow:
    """One node.

    Attributes:
        built: the precision found, as in `EngineTensor.dtype`, or "tf32"; "" where none is told.
        engine_layer: the name of the engine's layer that does its work, or "".
        note: why the verdict is what it is, where that is not plain.
        advice: what to do about a mismatch, where something is known.
    """

    node: str
    op_type: str
    asked: Precision
    built: str
    engine_layer: str
    verdict: Verdict
    note: str = ""
    advice: str = ""


@dataclass(frozen=True)
class Audit:
    """Every node that was asked for, in the order asked."""

    rows: tuple[AuditRow, ...]

    @property
    def mismatches(self) -> tuple[AuditRow, ...]:
        """Nodes that were built in another precision."""
        return self._with(Verdict.MISMATCH)

    @property
    def unknown(self) -> tuple[AuditRow, ...]:
        """Nodes of which the file does not tell."""
        return self._with(Verdict.UNKNOWN)

    @property
    def passed(self) -> bool:
        """Whether nothing was built otherwise than asked."""
        return not self.mismatches

    def _with(self, verdict: Verdict) -> tuple[AuditRow, ...]:
        return tuple(row for row in self.rows if row.verdict is verdict)


def audit(asked: Mapping[str, Precision], info: EngineInfo) -> Audit:
    """Compare the precision asked for each ONNX node with the one that was built.

    A matrix product is INT8 when the engine's layer that does its work reads Int8 data and, if it
    has weights, Int8 weights (`EngineLayer.precision`). TF32 counts as FP32, and is noted.

    Args:
        asked: node name -> precision. For a plan, the layers' names, which are their anchors'.
        info: of the engine, from a detailed source.

    Raises:
        UsageError: the source holds names only, or is of another model.
    """
    if not info.detailed:
        raise UsageError(
            "the engine's layers carry no precision, so nothing can be audited", NAMES_ONLY
        )
    nodes = {node.name: node for node in info.nodes}
    _check_same_model(asked, nodes, info)
    return Audit(tuple(_row(name, want, nodes.get(name), info) for name, want in asked.items()))


def _check_same_model(
    asked: Mapping[str, Precision], nodes: Mapping[str, OnnxNode], info: EngineInfo
) -> None:
    """Single layers may be merged into others; not all products, nor half of a log's nodes."""
    products = [n for n in asked if n in nodes and nodes[n].op_type in QUANTIZABLE_OPS]
    absent = [n for n in asked if n not in info.of_node]
    strange = [n for n in absent if n not in nodes]
    lost = all(n not in info.of_node for n in products or asked)
    if asked and (lost or (nodes and len(strange) > len(asked) / 2)):
        raise UsageError(
            f"{len(absent)} of the {len(asked)} layers asked for are not in the engine, for "
            f"example '{absent[0]}'",
            "Give the engine that was built from this model.",
        )


def _row(name: str, want: Precision, node: OnnxNode | None, info: EngineInfo) -> AuditRow:
    op_type = node.op_type if node else ""
    layer = info.layer_of(name)
    if layer is None:
        verdict, note = _absent(op_type, node, info)
        return AuditRow(name, op_type, want, "", "", verdict, note)
    verdict, note = _judged(name, op_type, want, layer)
    advice = ""
    if verdict is Verdict.MISMATCH and summed_in_fp32(node, want, layer, info):
        verdict, note = Verdict.FUSED, "FP16 data, summed in FP32: the casts around it are folded"
    elif verdict is Verdict.MISMATCH:
        note, advice = explain_mismatch(node, want, layer, info)
    return AuditRow(name, op_type, want, layer.precision, layer.name, verdict, note, advice)


def _absent(op_type: str, node: OnnxNode | None, info: EngineInfo) -> tuple[Verdict, str]:
    if info.nodes and node is None:
        return Verdict.UNKNOWN, "not a node of the model that was built"
    if any(layer.named_only for layer in info.layers):
        return Verdict.UNKNOWN, "no layer's name tells of it"
    if op_type in QUANTIZABLE_OPS:
        return Verdict.UNKNOWN, "no layer names it"
    if op_type in MOVING_OPS:
        return Verdict.GONE, "only moves data: its neighbours read and write in its order"
    return Verdict.GONE, "folded into a constant or merged into a neighbour"


def _judged(name: str, op_type: str, want: Precision, layer: EngineLayer) -> tuple[Verdict, str]:
    built = layer.precision
    if not built:
        return Verdict.UNKNOWN, "the layer carries no type"
    if built == want.value:
        return Verdict.SAME, ""
    if want is Precision.FP32 and built == "tf32":
        return Verdict.SAME, "in TF32: 10 bits of mantissa; clear the TF32 flag for full FP32"
    is_product = op_type in QUANTIZABLE_OPS or (not op_type and name in layer.own_names)
    if is_product and _cast_inside(want, layer):
        return Verdict.FUSED, f"in one kernel with the cast of its data to {want}"
    if is_product:
        return Verdict.MISMATCH, ""
    if layer.role is Role.MATRIX:
        return Verdict.FUSED, "inside a matrix product's kernel"
    if op_type in MOVING_OPS:
        return Verdict.FUSED, "passes values on unchanged"
    if built not in FLOATS:
        return (Verdict.MISMATCH, "") if built == "int8" else (Verdict.UNKNOWN, "integer work")
    operands = {t.dtype for t in (*layer.inputs, *layer.outputs, *layer.constants)}
    if want.value in operands or "Cast" in layer.fused_words:
        return Verdict.FUSED, f"one kernel with {built} and {want}"
    return Verdict.MISMATCH, ""


def _cast_inside(want: Precision, layer: EngineLayer) -> bool:
    """Whether a kernel that reads another floating point type converts it and multiplies in `want`,
    as its weights or, where it has none, its results show. Seen with TensorRT for RTX 1.7.1: a
    small product is a kernel like "__myl_CastReshMulSum", with the Cast before it."""
    told = {t.dtype for t in layer.constants if t.dtype in FLOATS}
    told = told or {t.dtype for t in layer.outputs}
    return "Cast" in layer.fused_words and want.value in FLOATS and told == {want.value}
