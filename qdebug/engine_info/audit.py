"""Requested vs. built precision: does each layer of an engine run as was requested?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from qdebug.engine_info.compiled import Weight
from qdebug.engine_info.files.layer_info import NAMES_ONLY
from qdebug.engine_info.layers import EngineInfo, EngineLayer, Role
from qdebug.engine_info.mismatch import (
    MOVING_OPS,
    explain_mismatch,
    quantizes_dynamically,
    summed_in_fp32,
)
from qdebug.engine_info.tensors import FLOATS
from qdebug.errors import UsageError
from qdebug.formats.registry import WEIGHT_FORMAT_OF, WEIGHT_ONLY
from qdebug.network.layers import QUANTIZABLE_OPS, Layers
from qdebug.network.prepare import Model
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

    A matrix product is judged by the type of what is multiplied (`product_of`), not by what its
    kernel reads. TF32 counts as FP32, and is noted.

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
    # Single layers may be merged into others; not all products, nor half of a log's nodes.
    products = requested.keys() & info.products
    absent = [n for n in requested if n not in info.of_node]
    strange = [n for n in absent if n not in info.by_name]
    lost = {*absent} >= (products or requested.keys())
    if requested and (lost or (info.nodes and len(strange) > len(requested) / 2)):
        raise UsageError(
            f"{len(absent)} of the {len(requested)} requested layers are not in the engine, for "
            f"example '{absent[0]}'",
            "Give the engine that was built from this model.",
            code="QD-USAGE-AUDIT-OTHER-MODEL",
        )
    return Audit(tuple(_row(name, want, info) for name, want in requested.items()))


def audit_plan(
    model: Model, layers: Layers, precisions: Mapping[str, Precision], info: EngineInfo
) -> Audit:
    """Compare what a plan asks for with the engine that was built from it.

    The engine may come from the lowered model, whose nodes have qdebug's names, or from the user's
    own file.

    Args:
        precisions: by layer name, what the lowered model really asks for (`ModelPair.precisions`:
            an operator without an FP16 form is FP32 there).

    Raises:
        UsageError: the engine's source tells no precision, or is of another model.
    """

    def built_name(node: str) -> str:
        """The name that the engine knows a prepared node by: its own, or the user's."""
        names = (node, *model.origins.get(node, ()))
        return next((n for n in names if n in info.of_node or n in info.op_types), node)

    def placed(node: str) -> NodePlacement:
        return NodePlacement(node, tuple(x.name for x in info.of_node.get(built_name(node), ())))

    result = audit({built_name(name): want for name, want in precisions.items()}, info)
    rows = {row.name: row for row in result.layers}
    return Audit(
        tuple(
            replace(
                rows[built_name(name)],
                name=name,
                op_type=layers.by_name[name].op_type,
                nodes=tuple(map(placed, layers.by_name[name].nodes)),
            )
            for name in precisions
        )
    )


Verdict = tuple[AuditVerdict, str]
"""And the reason, where it is not obvious."""


def _row(name: str, want: Precision, info: EngineInfo) -> AuditedLayer:
    node = info.by_name.get(name)
    op_type = node.op_type if node else ""
    layer = info.layer_of(name)
    built, advice, as_equivalent = "", "", False
    if layer is None:
        verdict, note = _absent(op_type, info)
        return AuditedLayer(name, op_type, want, built, verdict, note)
    if layer.role is Role.OPAQUE:
        verdict, note = AuditVerdict.UNKNOWN, "inside a layer that does not list its kernels"
    elif op_type in QUANTIZABLE_OPS or (not op_type and name in layer.own_names):
        found, built = product_of(name, info)
        layer = found or layer
        verdict, note = _judged_product(want, built, layer, info)
    else:
        built = layer.precision
        verdict, note = _judged(op_type, want, layer)
    if verdict is AuditVerdict.MISMATCH:
        if summed_in_fp32(node, want, layer, info):
            verdict = AuditVerdict.FUSED
            note = "FP16 data, summed in FP32: the casts around it are folded"
        elif quantizes_dynamically(node, want, info):
            verdict, as_equivalent = AuditVerdict.UNKNOWN, True
            note = "built as its Q/DQ equivalent, and not as the file has it"
        else:
            note, advice = explain_mismatch(node, want, built, layer, info)
    return AuditedLayer(
        name, op_type, want, built, verdict, note, advice, layer.name, as_equivalent=as_equivalent
    )


def _absent(op_type: str, info: EngineInfo) -> Verdict:
    """The verdict of a node that no layer names."""
    reasons = (
        (bool(info.nodes) and not op_type, "not a node of the model that was built"),
        (bool(info.hidden), "no layer names it; one that does not list its nodes may hold it"),
        (any(layer.named_only for layer in info.layers), "no layer name mentions it"),
        (op_type in QUANTIZABLE_OPS, "no layer names it"),
    )
    for holds, reason in reasons:
        if holds:
            return AuditVerdict.UNKNOWN, reason
    only = "; it only moves data" if op_type in MOVING_OPS else ""
    return AuditVerdict.GONE, f"no layer names it{only}"


_STORED: Mapping[Precision, str] = {
    Precision.INT4: "int4",
    **{p: WEIGHT_FORMAT_OF[p].name for p in WEIGHT_ONLY},
}
"""The type in which weights are stored that are multiplied in floating point."""


def _judged_product(want: Precision, built: str, layer: EngineLayer, info: EngineInfo) -> Verdict:
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
    for one in waiting:
        for feeder in (x for t in one.inputs for x in info.layers_writing.get(t.name, ())):
            if feeder.role is not Role.MATRIX and feeder.name not in seen:
                seen.add(feeder.name)
                waiting.append(feeder)
    return any(t.dtype == codes for one in waiting for t in one.constants)


def _compared(want: Precision, built: str) -> Verdict | None:
    if built == want.value:
        return AuditVerdict.SAME, ""
    if want is Precision.FP32 and built == "tf32":
        return AuditVerdict.SAME, "in TF32: 10 bits of mantissa; clear the TF32 flag for full FP32"
    return None


def _judged(op_type: str, want: Precision, layer: EngineLayer) -> Verdict:
    """The verdict of a node that is not a matrix product."""
    built = layer.precision
    same = _compared(want, built)
    operands = {t.dtype for t in (*layer.inputs, *layer.outputs, *layer.constants)}
    casts = want.value in operands or "Cast" in layer.fused_words
    rules = (
        (layer.role is Role.MATRIX, (AuditVerdict.FUSED, "inside a matrix product's kernel")),
        (not built, (AuditVerdict.UNKNOWN, "the layer carries no type")),
        (op_type in MOVING_OPS, (AuditVerdict.FUSED, "passes values on unchanged")),
        (built == "int8", (AuditVerdict.MISMATCH, "")),
        (built not in FLOATS, (AuditVerdict.UNKNOWN, "integer work")),
        (casts, (AuditVerdict.FUSED, f"one kernel with {built} and {want}")),
    )
    return same or next((v for holds, v in rules if holds), (AuditVerdict.MISMATCH, ""))


# ---- products


def product_of(node: str, info: EngineInfo) -> tuple[EngineLayer | None, str]:
    """The layer that multiplies for a node, and the type that it multiplies in, as in
    `EngineTensor.dtype` or "tf32"; "" when the file does not tell.

    Args:
        node: name of a matrix product.
    """
    layers = info.of_node.get(node, ())
    matrix = [layer for layer in layers if layer.role is Role.MATRIX]
    named = [layer for layer in matrix if node in layer.own_names]
    free = [layer for layer in matrix if not _taken(layer, node, info)]
    computing = [layer for layer in layers if layer.role is Role.OTHER]
    if matrix and not named and not free and not computing:
        return matrix[0], ""  # one of several products in a kernel that names fewer
    # Others that name the node prepare what it reads, or finish what it writes.
    able = named[:1] or free or computing or layers[:1]
    found = {_precision(node, layer, info) for layer in able}
    return next(iter(able), None), found.pop() if len(found) == 1 else ""


def _taken(layer: EngineLayer, node: str, info: EngineInfo) -> bool:
    """Whether products before and after `node`, which have no other layer, are as many as a kernel
    multiplies; products side by side may be multiplied as one."""
    if layer.compiled is None:
        return not layer.own_names.isdisjoint(info.products - {node})
    others = [
        name
        for name in layer.onnx_nodes
        if name != node and name in info.products
        if [x for x in info.of_node[name] if x.role is Role.MATRIX] == [layer]
        if _feeds(name, node, info) or _feeds(node, name, info)
    ]
    return len(others) >= layer.compiled.product_count


def _feeds(first: str, second: str, info: EngineInfo) -> bool:
    """Whether what a node computes reaches another."""
    waiting, seen = [second], {second}
    for name in waiting:
        node = info.by_name.get(name)
        for maker in (info.makers.get(t) for t in (node.inputs if node else ())):
            if maker is not None and maker.name not in seen:
                seen.add(maker.name)
                waiting.append(maker.name)
    return first in seen


def _precision(node: str, layer: EngineLayer, info: EngineInfo) -> str:
    if layer.role is Role.MATRIX or layer.compiled is None:
        return layer.precision
    found, io = info.by_name.get(node), {t.name for t in info.io}
    operands = zip(found.inputs, found.input_shapes, strict=False) if found else ()
    known = [
        Weight(dims, t not in io and info.makers.get(t) is None)
        for t, dims in list(operands)[:2][::-1]
        if dims is not None
    ]
    constant = (weight for weight in known if weight.constant)
    return layer.compiled.elementwise_precision(next(constant, next(iter(known), None)))
