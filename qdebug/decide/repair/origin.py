"""The model that a repair was given, as the FP32 network and the way in which it is quantized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from qdebug.backends.options import SessionSettings
from qdebug.config.search import RepairSettings
from qdebug.errors import UsageError
from qdebug.execute.model_pair import explicit, open_reference
from qdebug.formats.registry import FORMAT_OF, WEIGHT_ONLY
from qdebug.network.layers import QUANTIZABLE_OPS
from qdebug.network.prepare import Model
from qdebug.network.samplespec import SampleSpec
from qdebug.plan.given import own_constants
from qdebug.plan.pair import ModelPair, quantized_pair
from qdebug.plan.plan import GIVEN, Correction, PrecisionPlan, TensorRange
from qdebug.types import Precision
from qdebug.wording import counted, option


@dataclass(frozen=True)
class Origin:
    """Where a repair starts.

    Attributes:
        reference: the FP32 network.
        plan: of a quantized model with its precisions and ranges, weights included.
        corrections: of a quantized model: its weights that are not the nearest codes of those in
            FP32, and its other biases.
        notes: what the reader of the result must know.
    """

    reference: Model
    plan: PrecisionPlan
    corrections: Mapping[str, Correction] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def origin_of(
    settings: RepairSettings,
    given: Model,
    plan: PrecisionPlan,
    sources: Sequence[SampleSpec],
    sessions: SessionSettings,
) -> Origin:
    """What `given`, the user's model, starts the repair with; `plan` is what the settings say,
    `sources` the samples.

    Raises:
        UsageError: a quantized model without its FP32 model, or the other way round.
        QdebugError: the two do not belong together.
    """
    if not given.quantized:
        if settings.reference is not None:
            raise UsageError(
                f"{option('reference')}: {settings.model} is not quantized: there is nothing to "
                "repair in INT8 next to its FP32 model",
                f"Leave {option('reference')} out to repair the model as qdebug quantizes it, or "
                f"give the quantized model in the place of {settings.model}.",
                code="QD-USAGE-REFERENCE",
            )
        return Origin(given, plan)
    if settings.reference is None:
        raise UsageError(
            f"{settings.model} is quantized: its ranges, biases and rounding can be repaired next "
            "to the FP32 model that it was made from",
            f"Give that model as {option('reference', 'FP32.onnx')}, or repair the FP32 model "
            "itself.",
            code="QD-USAGE-REPAIR-REFERENCE",
        )
    reference = open_reference(settings.reference, given, sources, sessions)
    model, notes = explicit(given)
    pair = quantized_pair(model, reference.graph, settings.reference)
    _check_planned(settings.model, pair)
    notes += _unmatched_notes(settings, pair)
    return _as_quantized(settings.model, reference, pair, plan, notes)


def _check_planned(path: str, pair: ModelPair) -> None:
    """Refuse a model that computes in a format that no plan can ask for.

    Raises:
        UsageError: it does.
    """
    others = (x for x in pair.layers if pair.precisions[x.name] not in FORMAT_OF)
    layer = next(others, None)
    if layer is not None:
        able = ", ".join(p.upper() for p in FORMAT_OF if p not in WEIGHT_ONLY)
        raise UsageError(
            f"{path}: layer '{layer.name}' runs in {pair.precisions[layer.name].upper()}, and a "
            f"repair makes layers of {able} only",
            "`qdebug compare` says which layers cost most and why.",
            code="QD-USAGE-REPAIR-FORMAT",
        )


def _unmatched_notes(settings: RepairSettings, pair: ModelPair) -> tuple[str, ...]:
    """What to say of INT8 products that the FP32 model lacks: in the repaired one they would not be
    in INT8.

    Raises:
        UsageError: these are most of them; the model was made from another one.
    """
    graph = pair.candidate
    products = [
        node.name
        for node in graph.nodes
        if node.op_type in QUANTIZABLE_OPS
        and any(
            graph.producers[t].op_type == "DequantizeLinear"
            for t in node.inputs[:2]
            if t in graph.producers
        )
    ]
    missing = [name for name in products if name not in pair.reference.by_name]
    if not missing:
        return ()
    what = (
        f"{len(missing)} of the {counted(len(products), 'layer')} that multiply in INT8 in "
        f"{settings.model}, first '{missing[0]}', have no counterpart in {settings.reference}"
    )
    if 2 * len(missing) > len(products):
        raise UsageError(
            f"{option('reference')}: {what}",
            "Give the FP32 model that the quantized one was made from.",
            code="QD-USAGE-REPAIR-REFERENCE",
        )
    return (f"{what}: they are not in the repaired model.",)


def _as_quantized(
    path: str, reference: Model, pair: ModelPair, plan: PrecisionPlan, notes: tuple[str, ...]
) -> Origin:
    known = {*reference.graph.producers, *(spec.name for spec in reference.graph.inputs)}
    ranges = {
        tensor: TensorRange(max(map(abs, grid.range)), GIVEN)
        for tensor, grid in pair.grids.items()
        if tensor in known
    }
    layers = {
        layer.name: pair.precisions[layer.name]
        for layer in pair.layers
        if layer.quantizable or pair.precisions[layer.name] is not Precision.INT8
    }
    constants = own_constants(pair)
    others = len(list(pair.layers)) - len(layers)
    if others:
        notes += (
            f"{others} layers that are INT8 in {path} have no INT8 form as TensorRT "
            "takes it (Add, pooling, …): they stay in floating point in the repaired model.",
        )
    asymmetric = sum(not grid.symmetric for grid in pair.grids.values())
    if asymmetric:
        notes += (
            f"{asymmetric} tensors have unsigned or asymmetric codes in {path}: the "
            "repaired model has symmetric INT8, as TensorRT takes it.",
        )
    if constants.corrections:
        notes += (
            f"In {counted(len(constants.corrections), 'layer')} of {path} weights or biases are no "
            "rounding of the FP32 model's: the repair starts from them.",
        )
    found = replace(
        plan,
        layers={**layers, **plan.layers},
        tensors={**ranges, **constants.ranges, **plan.tensors},
    )
    return Origin(reference, found, constants.corrections, notes)
