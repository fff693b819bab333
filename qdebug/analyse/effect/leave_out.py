"""Candidates that differ from the planned model, or the user's, in which layers compute high."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import onnx

from qdebug.backends.base import Session
from qdebug.backends.int8_kernels import Int8Kernels, has_kernels
from qdebug.execute.context import Context
from qdebug.plan.imported import REST, Imported
from qdebug.plan.lower import lower
from qdebug.plan.pair import ModelPair
from qdebug.plan.plan import BoundPlan, bind_plan
from qdebug.plan.quantize import ROUNDING_INSIDE
from qdebug.types import Precision
from qdebug.wording import counted

High = frozenset[str]
"""The layers of one candidate that compute in FP32."""


@dataclass(frozen=True)
class Candidates:
    """Opens candidates; from several threads if need be.

    Attributes:
        context: what executes them.
        names: the layers that may be in FP32 or not, in execution order.
        everything: the candidate without any rounding.
        model: makes the one with these layers in FP32.
        notes: what the reader of a result must know.
        on_kernels: whether layers that may compute on INT8 kernels: else as they are written down.
    """

    context: Context
    names: tuple[str, ...]
    everything: High
    model: Callable[[High], onnx.ModelProto]
    notes: tuple[str, ...] = ()
    on_kernels: bool = False

    def open(self, high: High) -> Session:
        """The candidate with the layers `high` in FP32.

        Raises:
            ModelError, BackendError: the runtime does not take it.
        """
        return self.context.simulation.open(self.model(high), ())


def candidates_of(
    context: Context, pair: ModelPair, *, on_kernels: bool = False
) -> Candidates | None:
    """The candidates of a pair; None where no layer can be left out.

    Args:
        on_kernels: on ONNX Runtime's INT8 kernels; then None too where there are none, as in models
            that another tool has quantized. They are two to three times as fast as the model as it
            is written down, and round sums elsewhere.

    Raises:
        PlanError: a rewritten model is not valid.
    """
    if pair.plan is None:
        return None if on_kernels else _of_quantized(context, pair)
    bound = bind_plan(pair.plan, pair.model, pair.layers)
    names = [x.name for x in pair.layers if pair.precisions[x.name] is not Precision.FP32]
    if not names or (on_kernels and not has_kernels(bound)):
        return None
    model = partial(_planned, bound, Int8Kernels() if on_kernels else None)
    return Candidates(context, tuple(names), frozenset(names), model, on_kernels=on_kernels)


def _planned(bound: BoundPlan, kernels: Int8Kernels | None, high: High) -> onnx.ModelProto:
    """The planned model with these layers in FP32."""
    pins = dict.fromkeys(high, Precision.FP32)
    plan = replace(bound.plan, layers={**bound.plan.layers, **pins})
    pinned = replace(bound, plan=plan, precisions={**bound.precisions, **pins})
    graph = lower(pinned).graph
    return kernels.rewrite(graph) if kernels else graph.proto


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
    candidate = partial(_without_rounding, model, by_layer)
    return Candidates(context, names, frozenset({*names, REST}), candidate, _changed_note(changed))


def _without_rounding(
    model: Imported, by_layer: Mapping[str, Sequence[str]], high: High
) -> onnx.ModelProto:
    """The model in which the nodes of these layers round nothing."""
    return model.without(n for layer in high for n in by_layer.get(layer, ())).lowered


def _changed_note(layers: Sequence[str]) -> tuple[str, ...]:
    if not layers:
        return ()
    return (
        f"{counted(layers, 'layer')}, first '{layers[0]}', have other constants than the FP32 "
        "model, not only rounded ones. They stay when a layer is kept in FP32, so its gain is that "
        "of undoing the rounding alone.",
    )
