"""A quantized model with any number of ranges to try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from qdebug.backends.options import SessionSettings
from qdebug.calibrators.weights import mse_weight_amax, weight_amax
from qdebug.config.calibrate import CalibrateSettings
from qdebug.errors import UsageError
from qdebug.execute.control_flow import open_model
from qdebug.execute.model_pair import check_in_fp32, check_not_quantized
from qdebug.formats.registry import WEIGHT_FORMAT_OF
from qdebug.network.layers import Layers, find_layers
from qdebug.network.prepare import Model
from qdebug.network.samplespec import given_specs
from qdebug.plan.lower import required_opset
from qdebug.plan.plan import BoundPlan, Granularity, PrecisionPlan, TensorRange, bind_plan
from qdebug.plan.rewrite.qdq import weight_axis
from qdebug.types import Precision, ProgressCallback, ignore_progress

Ranges = Mapping[str, TensorRange]


@dataclass(frozen=True)
class Quantizable:
    """A model all of whose layers that can be quantized are.

    Attributes:
        needed: the activations that they read.
        weights: ranges of weights, where they are not the largest magnitude of each channel.
    """

    model: Model
    layers: Layers
    plan: PrecisionPlan
    needed: list[str]
    weights: Ranges

    def bound(self, ranges: Ranges) -> BoundPlan:
        """The quantized model with these ranges."""
        plan = replace(self.plan, tensors={**ranges, **self.weights})
        return bind_plan(plan, self.model, self.layers)


def read_quantizable(
    settings: CalibrateSettings,
    sessions: SessionSettings,
    progress: ProgressCallback = ignore_progress,
) -> Quantizable:
    """The model of `settings`.

    Raises:
        UsageError: it is quantized already, or has nothing to quantize.
        QdebugError: it cannot be read.
    """
    plan = PrecisionPlan(
        Precision(settings.precision),
        Precision(settings.fallback_precision),
        weights=Granularity(settings.weights),
    )
    sources = given_specs(settings.calibrates_on, settings.held_out)
    model = open_model(settings.model, required_opset(plan), sources, sessions, progress)
    check_not_quantized(model, "its ranges are in it")
    check_in_fp32(model)
    layers = find_layers(model.graph)
    bound = bind_plan(plan, model, layers)
    needed = bound.needed_ranges()
    if not needed:
        raise UsageError(
            f"{settings.model} has no layer that can run in {plan.precision.upper()}",
            f"Only Conv, ConvTranspose, Gemm and MatMul run in {plan.precision.upper()}."
            + "".join(f" {note}" for note in model.notes),
            code="QD-USAGE-NOTHING-TO-QUANTIZE",
        )
    weights = _weight_ranges(bound, mse=settings.weight_method == "mse")
    return Quantizable(model, layers, plan, needed, weights)


def _weight_ranges(bound: BoundPlan, *, mse: bool) -> dict[str, TensorRange]:
    """Of the weights of quantized layers, where they are not what a plan gives them by default: of
    least squared error, or one for the whole weight. A weight that two layers cut along different
    axes has none."""
    if not mse and bound.plan.weights is Granularity.PER_CHANNEL:
        return {}
    form = WEIGHT_FORMAT_OF[bound.plan.precision]
    method, amax_of = "max", weight_amax
    if mse:
        method, amax_of = "mse", partial(mse_weight_amax, form=form)
    graph = bound.layers.graph
    axes: dict[str, set[int | None]] = {}
    for layer in bound.quantized_layers():
        if layer.weight is not None:
            axis = weight_axis(graph.by_name[layer.name], graph, layer.weight)
            per_channel = bound.plan.weights is Granularity.PER_CHANNEL
            axes.setdefault(layer.weight, set()).add(axis if per_channel else None)
    ranges = {}
    for weight, (axis, *others) in axes.items():
        values = graph.constant(weight)
        if not others and values is not None and values.dtype == np.float32:
            amax = amax_of(values, axis).tolist()
            ranges[weight] = TensorRange(tuple(amax) if isinstance(amax, list) else amax, method)
    return ranges
