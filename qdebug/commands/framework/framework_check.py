"""The training framework against its ONNX export, on the same samples: the first suspect after a
failed comparison, whose error would else be blamed on the quantization."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace

import ml_dtypes
import numpy as np

from qdebug.backends.sizing import Parallelism
from qdebug.commands.framework.framework_arrays import CODE, FrameworkArrays, open_framework
from qdebug.commands.framework.matching import (
    Matches,
    aligned,
    candidates_of,
    is_numbered,
    matched,
)
from qdebug.errors import MetricError, SampleError
from qdebug.execute.context import Context, runner_of, sized
from qdebug.execute.preparation import rounding_db
from qdebug.metrics.accumulate import (
    CANDIDATE,
    REFERENCE,
    Comparison,
    ErrorTotals,
    ExecutedBatch,
    compare_batch,
)
from qdebug.metrics.sums import ErrorSums
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.metrics.tensor import metrics_of
from qdebug.network.graph import Graph
from qdebug.network.samples import Batch, Samples
from qdebug.network.samples.matching import quoted
from qdebug.network.samples.subset import whole
from qdebug.results.framework import FrameworkResult, FrameworkTensor
from qdebug.run.outputs import MetricEvaluator, joined
from qdebug.run.variant import as_it_is
from qdebug.types import Array, Skipped, Tensors
from qdebug.wording import option

_LIMIT_DB = 90.0
"""PyTorch and ONNX Runtime are 134 to 145 dB apart on the networks of torch_networks.py in tests,
70 to 74 with weights in FP16; in between there is room for convolutions by Winograd's method."""
_TELLING_DB = 20.0
"""Faults of an export leave 1 to 50 dB (FAULTS in the tests): where rounding explains outputs below
this, most of them would pass."""
_HALVES = {7: np.dtype(ml_dtypes.bfloat16), 10: np.dtype(np.float16)}
"""By the bits of their fraction: rounding is off by at most half of the last one, which leaves 48.2
and 66.2 dB. What BF16 holds FP16 holds, too, as long as it is of usual size."""
_ENOUGH_VALUES = 16
"""Fewer different values may be numbers of a half type by chance."""


def framework_result(
    data: str, context: Context, graph: Graph, samples: Samples, metric: TaskMetric | None
) -> FrameworkResult:
    """Compare what `data` holds, or computes, with the ONNX model in FP32, which is `graph`.

    Raises:
        SampleError: the framework's arrays cannot be read, are of other samples, or none of them is
            an output of the model.
        QdebugError: samples cannot be read, or the model does not run.
    """
    arrays = open_framework(data, samples)
    first = next(iter(samples.batches()))
    feeds = samples.feeds(first.start, first.count)
    values = arrays.read(first.start, first.count, feeds)
    matches = _matched(context, graph, arrays, values, feeds)
    wanted = tuple(t for t in dict.fromkeys(matches.tensors.values()) if t in graph.producers)
    outputs = tuple(t for t in graph.outputs if t in wanted)
    subset = sized(context, graph, whole(samples), wanted)
    kept = outputs if metric and len(outputs) == len(graph.outputs) else ()
    variants = {CANDIDATE: as_it_is(graph.proto, context.backend, {t: t for t in wanted})}
    comparison, totals = Comparison(tensors=wanted), ErrorTotals()
    sides: dict[str, dict[Batch, Tensors]] = {REFERENCE: {}, CANDIDATE: {}}
    runner = runner_of(replace(context, parallel=Parallelism(1, 1)), subset)
    with closing(runner.batches(variants, "framework")) as batches:
        for one in batches:
            theirs = _read(arrays, matches.tensors, one)
            both = replace(one, runs={**one.runs, REFERENCE: theirs})
            totals.add(compare_batch(comparison, both))
            for run, side in sides.items():
                side[one.batch] = {t: both.of(run)[t].copy() for t in kept}
    with closing(context.backend.open(graph.proto, ())) as session:
        limit = min(_LIMIT_DB, rounding_db(session, feeds, graph))
    order = {t: k for k, t in enumerate([*graph.activations(), *graph.outputs])}
    limits = {name: min(limit, _stored_db(values[name])) for name in matches.tensors}
    compared = [
        _compared(name, tensor, matches.how[name], totals.tensors[tensor], limits[name])
        for name, tensor in sorted(matches.tensors.items(), key=lambda x: order.get(x[1], 0))
        if tensor in totals.tensors
    ]
    result = FrameworkResult(
        str(data),
        samples.count,
        min(limits[n] for n, tensor in matches.tensors.items() if tensor in graph.outputs),
        tuple(t for t in compared if t.tensor in graph.outputs),
        tuple(t for t in compared if t.tensor not in graph.outputs),
        "",
        "",
        tuple(matches.unmatched),
        score=_score(metric, samples, sides) if metric and kept else None,
    )
    if result.agrees is not False or not result.modules:
        return result
    last, begins = _where(compared, order)
    return replace(result, last_agreeing=last, first_differing=begins)


def _score(
    metric: TaskMetric, samples: Samples, sides: Mapping[str, Mapping[Batch, Tensors]]
) -> float | None:
    """The metric of the framework's outputs; None where it cannot be computed of them."""
    try:
        own = MetricEvaluator.of(metric, samples, sides[CANDIDATE])
        return own(joined(sides[REFERENCE]))
    except MetricError:  # that of the ONNX model is told
        return None


def _matched(
    context: Context, graph: Graph, arrays: FrameworkArrays, values: Tensors, feeds: Tensors
) -> Matches:
    """Which tensor each array is, by the first samples.

    Raises:
        SampleError: nothing of the framework's is an output of the model, or one of its outputs
            cannot be compared.
    """
    for name, reason in arrays.left_out.items():
        is_output = name in graph.outputs or is_numbered(name)
        if is_output and name not in arrays.modules:
            raise SampleError(
                f"{option('framework')}: {arrays.where}: '{name}': {reason}.",
                "Give the framework's outputs for the samples that are compared, one row for each.",
                code=CODE,
            )
    place = {name: k for k, name in enumerate(arrays.modules)}
    candidates = candidates_of(sorted(values, key=lambda name: place.get(name, -1)), graph)
    wanted = dict.fromkeys(t for c in candidates for t in c.tensors if t in graph.producers)
    with closing(context.backend.open(graph.proto, list(wanted))) as session:
        tensors = session.run(feeds)
    found = matched(candidates, values, tensors)
    found.unmatched[:0] = [Skipped(*one) for one in arrays.left_out.items()]
    if any(tensor in graph.outputs for tensor in found.tensors.values()):
        return found
    same = next((name for name in graph.outputs if name in values and name in tensors), "")
    if same:
        shapes = list(values[same].shape), list(tensors[same].shape)
        what = f"'{same}' has shape {shapes[0]}, and the model gives {shapes[1]}."
    else:
        what = f"none of its arrays is an output of the model: it has {quoted(list(values))}, "
        what += f"and the model gives {quoted(list(graph.outputs))}."
    raise SampleError(
        f"{option('framework')}: {arrays.where}: {what}",
        "Name the arrays as the outputs, or give as many as there are, in their order, as "
        "output_0, output_1, …; each in the shape that the model gives.",
        code=CODE,
    )


def _stored_db(array: Array) -> float:
    """The SQNR that rounding to the type of an array leaves at least, +inf of FP32: it is rounded
    where its values are numbers of a half type, whatever it is stored as now."""
    if array.dtype.kind != "f" or len(np.unique(array)) < _ENOUGH_VALUES:
        return math.inf
    with np.errstate(over="ignore"):
        for bits, dtype in _HALVES.items():
            if np.array_equal(array.astype(dtype).astype(array.dtype), array, equal_nan=True):
                return 20 * math.log10(2 ** (bits + 1))
    return math.inf


def _read(
    arrays: FrameworkArrays, tensors: Mapping[str, str], executed: ExecutedBatch
) -> dict[str, Array]:
    """The framework's arrays for a batch, by tensor of the model.

    Raises:
        SampleError: they are of another shape than the model's, or hold NaN or Inf.
    """
    batch, own = executed.batch, executed.of(CANDIDATE)
    arrays.check(batch.start, executed.feeds, batch.count)
    values = arrays.read(batch.start, batch.count, executed.feeds)
    by_tensor = {}
    for name, tensor in tensors.items():
        value = aligned(values[name], own[tensor].shape) if name in values else None
        if value is None:
            shape = f"of shape {list(values[name].shape)}" if name in values else "not there"
            raise SampleError(
                f"{option('framework')}: {arrays.where}: '{name}' is {shape} for samples "
                f"{batch.start} to {batch.start + batch.count - 1}, and '{tensor}' of the "
                f"model {list(own[tensor].shape)}.",
                "Give the same outputs for all samples.",
                code=CODE,
            )
        _check_finite(name, value, own[tensor], arrays.where, batch.start)
        by_tensor[tensor] = value.astype(own[tensor].dtype, copy=False)
    return by_tensor


def _check_finite(name: str, value: Array, own: Array, where: str, start: int) -> None:
    """Raises SampleError: the framework gives NaN or Inf where the model does not."""
    if value.dtype.kind != "f":
        return
    broken = ~np.isfinite(value) & np.isfinite(own)
    if broken.any():
        sample = start + int(np.argmax(broken.reshape(len(value), -1).any(axis=1)))
        raise SampleError(
            f"{option('framework')}: {where}: '{name}' holds NaN or Inf, first in sample {sample}, "
            "and the ONNX model does not.",
            "Look at the framework's own run first.",
            code=CODE,
        )


def _compared(name: str, tensor: str, how: str, sums: ErrorSums, limit: float) -> FrameworkTensor:
    metrics = metrics_of(sums)
    return FrameworkTensor(
        name,
        tensor,
        how,
        metrics.sqnr_db,
        metrics.max_abs_err,
        metrics.ref_amax,
        metrics.worst_sample,
        None if limit <= metrics.sqnr_db < _TELLING_DB else metrics.sqnr_db >= limit,
    )


def _where(compared: Sequence[FrameworkTensor], order: Mapping[str, int]) -> tuple[str, str]:
    """The last tensor that agrees, "" for none, and the first that differs. A tensor that differs
    and from which one follows that agrees is not the same quantity."""
    agreeing = [t.tensor for t in compared if t.agrees is not False]
    differing = [t.tensor for t in compared if t.agrees is False]
    last = max(agreeing, key=lambda t: order.get(t, -1), default="")
    after = (t for t in differing if order.get(t, -1) > order.get(last, -1))
    return last, next(after, differing[0])  # a branch may agree to its end
