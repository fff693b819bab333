"""The training framework against its ONNX export, on the same samples: the first suspect after a
failed comparison, whose error would else be blamed on the quantization."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np

from qdebug.backends.sizing import probe
from qdebug.commands.framework.export_causes import BySample, Causes, Matched
from qdebug.commands.framework.export_faults import half_of
from qdebug.commands.framework.framework_arrays import CODE, FrameworkArrays, open_framework
from qdebug.commands.framework.module_scopes import aligned, candidates_of, is_numbered
from qdebug.errors import MetricError, SampleError
from qdebug.execute.context import Context
from qdebug.execute.evaluator import MetricEvaluator, OutputKeeper, evaluate, run_of
from qdebug.execute.preparation import rounding_db
from qdebug.metrics.accumulate import CANDIDATE, REFERENCE, Comparison, ExecutedBatch
from qdebug.metrics.sums import ErrorSums
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.metrics.tensor import metrics_of
from qdebug.network.graph import Graph
from qdebug.network.samples import Samples
from qdebug.network.samples.matching import quoted
from qdebug.network.samples.subset import whole
from qdebug.results.framework import FrameworkResult, FrameworkTensor
from qdebug.types import Array, Skipped, Tensors
from qdebug.wording import counted, option

_LIMIT_DB = 90.0
"""PyTorch and ONNX Runtime are 134 to 145 dB apart on the networks of torch_networks.py in tests,
70 to 74 with weights in FP16; in between there is room for convolutions by Winograd's method."""
_TELLING_DB = 20.0
"""Faults of an export leave 1 to 50 dB (docs/guides/export-check.md, FAULTS in the tests): where
rounding explains outputs below this, most of them would pass."""
_FRACTION_BITS = {"FP16": 10, "BF16": 7}
"""Rounding to so many bits is off by at most half of the last one: 66.2 and 48.2 dB."""
_FRAMEWORK = "framework"


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
    matched = _matched(context, graph, samples, arrays)
    wanted = [t for t in dict.fromkeys(matched.tensors.values()) if t in graph.producers]
    outputs = [t for t in graph.outputs if t in wanted]
    kept = [OutputKeeper(run, outputs, for_metric=True) for run in (REFERENCE, CANDIDATE)]
    kept = kept if metric and len(outputs) == len(graph.outputs) else []
    by_sample = BySample(outputs)
    with closing(context.backend.open(graph.proto, wanted)) as session:
        runs = {CANDIDATE: run_of(session), REFERENCE: _framework_run(arrays, matched.tensors)}
        comparison = Comparison(tensors=tuple(wanted))
        totals = evaluate(
            whole(probe(session, samples, context.batch_size).samples),
            runs,
            {_FRAMEWORK: comparison},
            context,
            workers=1,
            sinks=[by_sample, *kept],
            stage="framework",
        )[_FRAMEWORK]
        start = next(iter(samples.batches()))
        feeds = samples.feeds(start.start, start.count)
        computed = min(_LIMIT_DB, rounding_db(session, feeds, graph))
    limits = {name: min(computed, stored) for name, stored in matched.stored_db.items()}
    compared = [
        _tensor(name, tensor, matched.how[name], totals.tensors[tensor], limits[name])
        for name, tensor in matched.tensors.items()
        if tensor in totals.tensors
    ]
    limit = min(limits[n] for n, tensor in matched.tensors.items() if tensor in graph.outputs)
    result = FrameworkResult(
        str(data),
        samples.count,
        limit,
        tuple(t for t in compared if t.tensor in graph.outputs),
        tuple(t for t in compared if t.tensor not in graph.outputs),
        "",
        "",
        matched.unmatched,
        score=_score(metric, samples, *kept) if metric and kept else None,
    )
    if result.agrees is not False:
        return result
    last, begins = _where(compared, graph)
    result = replace(result, last_agreeing=last, first_differing=begins)
    return Causes(result, context, graph, samples, arrays, matched, by_sample).explained()


def _score(
    metric: TaskMetric, samples: Samples, framework: OutputKeeper, own: OutputKeeper
) -> float | None:
    """The metric of the framework's outputs; None where it cannot be computed of them."""
    try:
        return MetricEvaluator.of(metric, samples, own)(framework.joined())
    except MetricError:  # that of the ONNX model is told
        return None


def _matched(context: Context, graph: Graph, samples: Samples, arrays: FrameworkArrays) -> Matched:
    """By the first samples: where several tensors may be meant, by values.

    Raises:
        SampleError: nothing of the framework's is an output of the model.
    """
    start = next(iter(samples.batches()))
    feeds = samples.feeds(start.start, start.count)
    values = arrays.read(start.start, start.count, feeds)
    _check_outputs(arrays, graph)
    order = {name: k for k, name in enumerate(arrays.facts.get("modules", ()))}
    names = sorted(values, key=lambda name: order.get(name, -1))
    candidates = candidates_of(names, graph)
    wanted = dict.fromkeys(t for c in candidates for t in c.tensors if t in graph.producers)
    with closing(context.backend.open(graph.proto, list(wanted))) as session:
        tensors = session.run(feeds)
    tensor_of: dict[str, str] = {}
    how: dict[str, str] = {}
    unmatched = [Skipped(name, reason) for name, reason in arrays.left_out.items()]
    before: tuple[str, str] | None = None
    taken = {t for c in candidates if c.how != "scope" for t in c.tensors}
    for candidate in candidates:
        errors = {
            t: _distance(values[candidate.name], tensors[t])
            for t in candidate.tensors
            if t in tensors
        }
        tensor = min(errors, key=lambda t: errors[t], default="")
        tensor = tensor if errors.get(tensor, math.inf) < math.inf else ""
        if before is not None and not candidate.tensors:
            own, its = (
                _distance(values[n], tensors[before[1]]) for n in (candidate.name, before[0])
            )
            if own < its:  # what the one before computes is not in the model any more
                unmatched.append(Skipped(before[0], f"'{candidate.name}' is folded into it"))
                del tensor_of[before[0]]
                tensor_of[candidate.name], how[candidate.name] = before[1], "folded"
                before = (candidate.name, before[1])
                continue
        if not tensor:
            shape = list(values[candidate.name].shape)
            reason = (
                "no node's name has its scope" if not candidate.tensors else f"of shape {shape}"
            )
            unmatched.append(Skipped(candidate.name, reason))
            continue
        if tensor in (taken if candidate.how == "scope" else ()) or tensor in tensor_of.values():
            continue  # an output, or the last of a module's children, is there by its own name
        tensor_of[candidate.name], how[candidate.name] = tensor, candidate.how
        before = (candidate.name, tensor) if candidate.how == "scope" else before
    if not any(t in graph.outputs for t in tensor_of.values()):
        same = next((name for name in graph.outputs if name in values and name in tensors), "")
        if same:
            what = f"'{same}' has shape {list(values[same].shape)} for "
            what += f"{counted(start.count, 'sample')}, and the model gives "
            what += f"{list(tensors[same].shape)}."
        else:
            what = f"none of its arrays is an output of the model: it has {quoted(list(values))}, "
            what += f"and the model gives {quoted(list(graph.outputs))}."
        raise SampleError(
            f"{option('framework')}: {arrays.where}: {what}",
            "Name the arrays as the outputs, or give as many as there are, in their order, as "
            "output_0, output_1, …; each in the shape that the model gives.",
            code=CODE,
        )
    places = {t: k for k, t in enumerate([*graph.activations(), *graph.outputs])}
    names = sorted(tensor_of, key=lambda name: places.get(tensor_of[name], 0))
    stored = {name: _stored_db(values[name]) for name in names}
    return Matched({n: tensor_of[n] for n in names}, how, stored, tuple(unmatched))


def _stored_db(array: Array) -> float:
    """The SQNR that rounding to the type of an array leaves at least, +inf of FP32: it is rounded
    where its values are numbers of a half type, whatever it is stored as now."""
    name = half_of(array)
    return 20 * math.log10(2 ** (_FRACTION_BITS[name] + 1)) if name else math.inf


def _check_outputs(arrays: FrameworkArrays, graph: Graph) -> None:
    """Raises SampleError: what is called as an output of the model cannot be compared."""
    modules = arrays.facts.get("left_out", ())
    for name, reason in arrays.left_out.items():
        if name not in modules and (name in graph.outputs or is_numbered(name)):
            raise SampleError(
                f"{option('framework')}: {arrays.where}: '{name}': {reason}.",
                "Give the framework's outputs for the samples that are compared, one row for each.",
                code=CODE,
            )


def _distance(array: Array, tensor: Array) -> float:
    """Σ(array − tensor)² of what is finite in both; +inf where they are not of one shape."""
    values = aligned(array, tensor.shape)
    if values is None:
        return math.inf
    with np.errstate(invalid="ignore"):  # the same infinity in both
        difference = values.astype(np.float64) - tensor
    return float(
        np.square(difference, where=np.isfinite(difference), out=np.zeros_like(difference)).sum()
    )


def _framework_run(
    arrays: FrameworkArrays, tensors: Mapping[str, str]
) -> Callable[[ExecutedBatch], Tensors]:
    def run(executed: ExecutedBatch) -> Tensors:
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

    return run


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


def _tensor(name: str, tensor: str, how: str, sums: ErrorSums, limit: float) -> FrameworkTensor:
    metrics = metrics_of(sums)
    agrees = None if limit <= metrics.sqnr_db < _TELLING_DB else metrics.sqnr_db >= limit
    return FrameworkTensor(
        name,
        tensor,
        how,
        metrics.sqnr_db,
        metrics.max_abs_err,
        metrics.ref_amax,
        metrics.worst_sample,
        agrees,
    )


def _where(compared: Sequence[FrameworkTensor], graph: Graph) -> tuple[str, str]:
    """The last tensor that agrees and the first that differs; "" where there are no activations. A
    tensor that differs and from which one follows that agrees is not the same quantity."""
    if all(t.tensor in graph.outputs for t in compared):
        return "", ""
    order = {t: k for k, t in enumerate([*graph.activations(), *graph.outputs])}
    agreeing = [t for t in compared if t.agrees is not False]
    last = max(agreeing, key=lambda t: order.get(t.tensor, -1), default=None)
    after = order.get(last.tensor, -1) if last else -1
    begins = next(
        (t for t in compared if t.agrees is False and order.get(t.tensor, -1) > after), None
    )
    if begins is None:  # a branch agrees to its end
        begins = next(t for t in compared if t.agrees is False)
    return last.tensor if last else "", begins.tensor
