"""The training framework against its ONNX export, on the same samples: the first suspect after a
failed comparison, whose error would else be blamed on the quantization."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import onnx

from qdebug.backends.sizing import Parallelism
from qdebug.commands.framework.framework_arrays import CODE, FrameworkArrays, open_framework
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
from qdebug.network.samples.matching import aliases, quoted
from qdebug.network.samples.subset import whole
from qdebug.results.framework import FrameworkResult, FrameworkTensor
from qdebug.run.outputs import MetricEvaluator, joined
from qdebug.run.variant import as_it_is
from qdebug.types import Array, Skipped, Tensors
from qdebug.wording import option

_NUMBERED = re.compile(r"(?:output|out|arr)_?\d+$")
"""Names that say no more than an order, such as those of `numpy.savez(path, first, second)`."""
_SCOPES = "pkg.torch.onnx.name_scopes"
"""Where torch.export's converter writes the modules that a node came from."""


@dataclass(frozen=True)
class Candidates:
    """The tensors that an array may be.

    Attributes:
        how: see FrameworkTensor.
        tensors: the likeliest first; none where nothing is called alike.
    """

    name: str
    how: str
    tensors: tuple[str, ...]


@dataclass
class Matches:
    """Which tensor each array is.

    Attributes:
        tensors: by the array's name.
        how: see FrameworkTensor.
        unmatched: arrays that are none, and why.
    """

    tensors: dict[str, str]
    how: dict[str, str]
    unmatched: list[Skipped]


def is_numbered(name: str) -> bool:
    """Whether a name says no more than an order."""
    return _NUMBERED.match(name) is not None


def candidates_of(names: Sequence[str], graph: Graph) -> list[Candidates]:
    """What each array may be; of an output or a tensor by its name, of outputs by their order, of
    modules by scope. `names` are in the framework's order of execution."""
    tensors = dict.fromkeys([*graph.outputs, *graph.activations()])
    by_alias = {alias: t for t in reversed([*tensors]) for alias in aliases(t)}
    numbered = [name for name in names if name not in by_alias and is_numbered(name)]
    outputs = [t for t in graph.outputs if t not in {by_alias.get(n) for n in names}]
    ordered = dict(zip(numbered, outputs, strict=False))
    if not ordered and len(names) == len(outputs) == 1:
        ordered = {names[0]: outputs[0]}
    scopes, found = _scopes(graph), []
    for name in names:
        if name in by_alias:
            found.append(Candidates(name, "name", (by_alias[name],)))
        elif name in ordered:
            found.append(Candidates(name, "order", (ordered[name],)))
        else:
            found.append(Candidates(name, "scope", tuple(_of_module(name, graph, scopes))))
    return found


def matched(candidates: Sequence[Candidates], values: Tensors, tensors: Tensors) -> Matches:
    """Which tensor of the model each array is: of several candidates the one with the nearest
    values. A module without nodes of its own is taken for folded into the one before, where it is
    nearer to what that one's tensor is now.

    Args:
        values: of the arrays, on some samples. tensors: of the model, on the same.
    """
    found = Matches({}, {}, [])
    taken = {t for c in candidates if c.how != "scope" for t in c.tensors}
    before = ""
    for candidate in candidates:
        name, own = candidate.name, values[candidate.name]
        if before and not candidate.tensors:
            tensor = found.tensors[before]
            if _distance(own, tensors[tensor]) < _distance(values[before], tensors[tensor]):
                found.unmatched.append(Skipped(before, f"'{name}' is folded into it"))
                del found.tensors[before]
                found.tensors[name], found.how[name], before = tensor, "folded", name
                continue
        errors = {t: _distance(own, tensors[t]) for t in candidate.tensors if t in tensors}
        tensor = min(errors, key=lambda t: errors[t], default="")
        if errors.get(tensor, math.inf) == math.inf:
            shape = f"of shape {list(own.shape)}"
            reason = shape if candidate.tensors else "no node's name has its scope"
            found.unmatched.append(Skipped(name, reason))
        elif candidate.how != "scope" or tensor not in {*taken, *found.tensors.values()}:
            found.tensors[name], found.how[name] = tensor, candidate.how
            before = name if candidate.how == "scope" else before
    return found


def _distance(array: Array, tensor: Array) -> float:
    """Σ(array − tensor)² of what is finite in both; +inf where they are not of one shape."""
    values = aligned(array, tensor.shape)
    if values is None:
        return math.inf
    with np.errstate(invalid="ignore"):  # the same infinity in both
        difference = values.astype(np.float64) - tensor
    return float(np.square(difference[np.isfinite(difference)]).sum())


def _of_module(name: str, graph: Graph, scopes: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """What the nodes of a module give to others, the last first, then what else they compute."""
    path = tuple(name.split("."))
    own = [n for n in graph.nodes if scopes.get(n.name, ())[: len(path)] == path]
    inside = {n.name for n in own}
    read = {t for n in graph.nodes if n.name not in inside for t in n.reads}
    tensors = [t for n in reversed(own) for t in n.outputs if t and graph.is_float(t)]
    yield from dict.fromkeys([*(t for t in tensors if t in read or t in graph.outputs), *tensors])


def _scopes(graph: Graph) -> dict[str, tuple[str, ...]]:
    """The path of the module that each node came from, by the node's name."""
    written = {
        (node.name or node.output[0]): scope
        for node in graph.proto.graph.node
        if node.output and (scope := _written_scope(node))
    }
    return {n.name: written.get(n.name) or scope_of(n.name) for n in graph.nodes}


def _written_scope(node: onnx.NodeProto) -> tuple[str, ...]:
    """By torch.export's converter: such as "['', 'layer1.0', 'layer1.0.conv1', 'conv2d']"."""
    text = next((p.value for p in node.metadata_props if p.key == _SCOPES), "")
    try:
        scopes = ast.literal_eval(text) if text else []
    except (ValueError, SyntaxError):
        return ()
    modules = [s for s in scopes[:-1] if isinstance(s, str) and s]
    return tuple(modules[-1].split(".")) if modules else ()


def scope_of(node: str) -> tuple[str, ...]:
    """By TorchScript's converter: of `/layer1/layer1.0/conv1/Conv` it is layer1, 0, conv1."""
    path: list[str] = []
    for part in node.strip("/").split("/")[:-1]:
        own = part.split(".")
        # A child of a list or of a Sequential carries its parent's name once more.
        parent = own[:-1]
        path += own[-1:] if parent and path[-len(parent) :] == parent else own
    return tuple(path)


def aligned(array: Array, shape: tuple[int, ...]) -> Array | None:
    """An array of the framework in the shape of the ONNX model's tensor: channels last put
    second, samples moved to the axis where the model has them, axes of size 1 dropped or added;
    None where it is none of these."""
    if array.shape == shape:
        return array
    ways = [np.moveaxis(array, 3, 1)] if array.ndim == 4 else []
    ways += [np.moveaxis(array, 0, axis) for axis in range(1, array.ndim)]
    moved = next((way for way in ways if way.shape == shape), None)
    if moved is not None:
        return np.ascontiguousarray(moved)
    squeezed = [tuple(n for n in s if n != 1) for s in (array.shape, shape)]
    return array.reshape(shape) if squeezed[0] == squeezed[1] else None


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
