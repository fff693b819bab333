"""Candidates that differ from the planned model, or the user's, in which layers compute high."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import onnx

from qdebug.execute.context import Context
from qdebug.execute.variants import PlannedVariants
from qdebug.memo import digest_of
from qdebug.network.weights import model_digest
from qdebug.plan.imported import REST, Imported
from qdebug.plan.pair import ModelPair
from qdebug.plan.plan import bind_plan
from qdebug.plan.quantize import ROUNDING_INSIDE
from qdebug.run.variant import Variant, key_of
from qdebug.types import Precision
from qdebug.wording import counted

High = frozenset[str]
"""The layers of one candidate that compute in FP32."""


@dataclass(frozen=True)
class Candidates:
    """Variants of a pair's candidate.

    Attributes:
        names: the layers that may be in FP32 or not, in execution order.
        everything: the candidate without any rounding.
        variant: the one with these layers in FP32.
        notes: what the reader of a result must know.
    """

    names: tuple[str, ...]
    everything: High
    variant: Callable[[High], Variant]
    notes: tuple[str, ...] = ()


def candidates_of(context: Context, pair: ModelPair) -> Candidates | None:
    """The candidates of a pair; None where no layer can be left out.

    Raises:
        PlanError: a rewritten model is not valid.
    """
    if pair.plan is None:
        return _of_quantized(context, pair)
    names = [x.name for x in pair.layers if pair.precisions[x.name] is not Precision.FP32]
    if not names:
        return None
    bound = bind_plan(pair.plan, pair.model, pair.layers)
    variants = PlannedVariants(bound, context.simulation)

    def variant(high: High) -> Variant:
        return variants.with_layers(dict.fromkeys(high, Precision.FP32))

    return Candidates(tuple(names), frozenset(names), variant)


def _of_quantized(context: Context, pair: ModelPair) -> Candidates | None:
    """Of a model that another tool has quantized or converted: a layer in FP32 is one without its
    rounding."""
    layers = [
        x
        for x in pair.layers
        if pair.precisions[x.name] is not Precision.FP32
        and x.output not in pair.refuted
        and x.op_type not in ROUNDING_INSIDE
    ]
    model = pair.imported
    owners = model.owners(pair.reference, layers)
    names = tuple(dict.fromkeys(n for n in owners.values() if n != REST))
    if not names:
        return None
    by_layer: dict[str, list[str]] = {}
    for node, layer in owners.items():
        by_layer.setdefault(layer, []).append(node)
    changed = [x.name for x in layers if not model.changed.keys().isdisjoint(x.nodes)]
    how = key_of(context.simulation)
    both = how and digest_of(*(model_digest(g.proto) for g in (pair.reference, pair.candidate)))

    def variant(high: High) -> Variant:
        nodes = tuple(n for layer in high for n in by_layer.get(layer, ()))
        key = both and digest_of("unrounded", both, sorted(high), how)
        return Variant(partial(_without_rounding, model, nodes), context.simulation, key)

    return Candidates(names, frozenset({*names, REST}), variant, _changed_note(changed))


def _without_rounding(model: Imported, nodes: Sequence[str]) -> onnx.ModelProto:
    return model.without(nodes).lowered


def _changed_note(layers: Sequence[str]) -> tuple[str, ...]:
    if not layers:
        return ()
    return (
        f"{counted(layers, 'layer')}, first '{layers[0]}', have other constants than the FP32 "
        "model, not only rounded ones. They stay when a layer is kept in FP32, so its gain is that "
        "of undoing the rounding alone.",
    )
