"""End-to-end accuracy: built-in metrics and the user's own functions, on the final outputs."""

from __future__ import annotations

import difflib
import hashlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qdebug.errors import MetricError
from qdebug.inmemory import InMemory
from qdebug.metrics import tensor as metrics
from qdebug.types import Array
from qdebug.userfile import (
    UserCodeProblem,
    digest_of,
    function_of,
    last_line,
    load_file,
    load_module,
    name_of,
    raising_line,
)
from qdebug.wording import as_known, option

_PROBLEM = UserCodeProblem(MetricError, "QD-METRIC-FUNCTION", "metric")
BUILT_IN = tuple(metric.name for metric in metrics.BUILT_IN)
_GIVEN = ("outputs", "labels", "reference")
_NAME_THEM = "Name the parameters outputs and labels to get dicts of arrays."
LABEL_NAMES = ("labels", "label", "y_true", "y", "targets", "target")

Outputs = Mapping[str, Array]


@dataclass(frozen=True)
class TaskMetric:
    """A named measure of end-to-end quality.

    Attributes:
        name: for people.
        needs_labels: there must be one array of labels.
        compute: `compute(outputs, labels, reference)`: outputs and reference are arrays
            [samples, …] by output name, labels the arrays that are not inputs; returns one number.
        file: where the user's code is, to quote from when it raises.
        function: the user's function, where it was given in memory.
        hint: what else to try where it raises.
    """

    name: str
    needs_labels: bool
    compute: Callable[[Outputs, Outputs, Outputs], Any]
    file: Path | None = None
    function: Callable[..., Any] | None = None
    hint: str = ""

    @property
    def key(self) -> str | None:
        """A key that identifies this metric, its code included; None where there is none, so that
        none of its results may be reused."""
        if self.function is not None:
            digest = digest_of(self.function)
            return digest and f"{self.name} {digest}"
        if self.file is None:
            return self.name
        function = self.name.rpartition(":")[2]
        code = hashlib.sha256(self.file.read_bytes()).hexdigest()
        return f"{self.file.resolve()}:{function} {code}"  # however the path is spelled

    @property
    def _named(self) -> str:
        return option("metric", self.name)

    def __call__(self, outputs: Outputs, labels: Outputs, reference: Outputs) -> float:
        """The metric's value.

        Raises:
            MetricError: it raised, or gave no finite number.
        """
        try:
            returned = self.compute(outputs, labels, reference)
        except MetricError:
            raise
        except Exception as error:  # the user's code may raise anything
            message = f"{self._named} raised {last_line(error)}"
            hint = self.hint or _shapes_of(outputs=outputs, labels=labels, reference=reference)
            hint = " ".join(filter(None, (raising_line(error, self.file), hint)))
            raise MetricError(message, hint, code="QD-METRIC-RAISED") from error
        try:
            value = float(returned)
        except OverflowError as error:
            raise MetricError(
                f"{self._named} returned a number that is too large for a float",
                "It must return one finite number.",
                code="QD-METRIC-VALUE",
            ) from error
        except (TypeError, ValueError) as error:
            kind = type(returned).__name__
            raise MetricError(
                f"{self._named} returned a {kind}, which is not a number",
                "It must return one number.",
                code="QD-METRIC-VALUE",
            ) from error
        if not math.isfinite(value):
            raise MetricError(
                f"{self._named} returned {value}, which is not a finite number",
                code="QD-METRIC-VALUE",
            )
        return value


def _shapes_of(**given: Outputs) -> str:
    """What a metric gets, for people: the arrays are in dicts, which its author may not know."""
    shapes = (
        f"{name} = {{{', '.join(f'{k!r}: {list(np.shape(v))}' for k, v in arrays.items())}}}"
        for name, arrays in given.items()
    )
    return f"It is given dicts of arrays, of these shapes: {'; '.join(shapes)}."


def load_metric(spec: str) -> TaskMetric:
    """The metric for a name of BUILT_IN, "file.py:function", "package.module:function", or for a
    function in memory (see `metric_in_memory`).

    A function of a file, or in memory, is called with those of `outputs`, `labels` and `reference`
    that it names as parameters; one with `**kwargs` gets all three. One with two other parameters,
    and any of a module, is called as scikit-learn's are: `(y_true, y_pred)`, where y_pred is the
    class index when the labels are whole numbers and the output has one more axis, and the raw
    output otherwise.

    Raises:
        MetricError: there is no such metric, file or function.
    """
    if isinstance(spec, InMemory):
        return _by_parameters(str(spec), spec.value, function=spec.value)
    known = as_known(spec, BUILT_IN)
    for metric in metrics.BUILT_IN:
        if metric.name == known:
            return TaskMetric(known, metric.needs_labels, globals()[known])
    source, _, name = spec.rpartition(":")
    if not source or not name:
        error = _unknown(spec)
        raise error
    if source.endswith(".py"):
        path = Path(source)
        function = function_of(load_file(path, _PROBLEM), name, spec, _PROBLEM)
        return _by_parameters(spec, function, file=path)
    return _from_module(spec, source, name)


def _unknown(spec: str) -> MetricError:
    """The error of a metric that is neither built in nor a function: what there is, and how to
    write one."""
    if spec.endswith(".py"):
        return MetricError(
            f"{option('metric')}: {spec} is a file, and which function in it is not said",
            f"Write {option('metric', f'{spec}:FUNCTION')}.",
            code="QD-METRIC-UNKNOWN",
        )
    close = difflib.get_close_matches(spec.lower(), [*BUILT_IN, *_ALSO_CALLED], n=1)
    meant = f"Did you mean '{_ALSO_CALLED.get(close[0], close[0])}'?\n  " if close else ""
    listed = "; ".join(f"{metric.name} ({metric.meaning})" for metric in metrics.BUILT_IN)
    file = option("metric", "metric.py:score")
    module = option("metric", "sklearn.metrics:balanced_accuracy_score")
    return MetricError(
        f"{option('metric')}: unknown metric '{spec}'",
        f"{meant}Built in: {listed}.\n"
        f"  Any other is a function. In a file metric.py, for {file}:\n"
        "    def score(outputs, labels):  # dicts of arrays, samples on the first axis\n"
        "        return float((outputs['OUTPUT'].argmax(1) == labels['labels']).mean())\n"
        f"  Or one of a package, called with (y_true, y_pred): {module}",
        code="QD-METRIC-UNKNOWN",
    )


_ALSO_CALLED = dict.fromkeys(("accuracy", "acc", "top-1", "top_1"), "top1")


def is_share(metric: TaskMetric | None) -> bool:
    """Whether a metric is a share of the samples, each of which counts as one."""
    return metric is not None and metric.name in metrics.SHARES


def metric_in_memory(function: Callable[..., Any]) -> InMemory:
    """The spec of a function in memory, for `load_metric`."""
    return InMemory(name_of(function), function)


def labels_of(extras: Outputs, where: str = "") -> Array:
    """The one array of labels; `where` is the file.

    Raises:
        MetricError: there is none, or it is not clear which one it is.
    """
    for name in LABEL_NAMES:
        if name in extras:
            return extras[name]
    if len(extras) == 1:
        return next(iter(extras.values()))
    found = (
        f"the arrays that are not inputs are {', '.join(extras)}" if extras else "there are none"
    )
    raise MetricError(
        f"{where}{': ' * bool(where)}the metric needs labels, but {found}",
        "Add an array 'labels' with one entry per sample to the data, or use "
        f"{option('metric', 'agreement')}.",
        code="QD-METRIC-LABELS",
    )


def join_outputs(parts: Mapping[str, Sequence[Array]], counts: Sequence[int]) -> dict[str, Array]:
    """Outputs of several executions, by name, as one array [samples, …] each.

    Args:
        counts: the samples of each execution.

    Raises:
        MetricError: an output has another shape for some samples.
    """
    return {
        name: np.concatenate(check_shapes(name, pieces, counts)) for name, pieces in parts.items()
    }


def check_shapes(name: str, pieces: Sequence[Array], counts: Sequence[int]) -> list[Array]:
    """An output of several executions, as arrays [samples, …] that can be joined; `counts` are the
    samples of each.

    Raises:
        MetricError: their shapes differ beyond the samples.
    """
    arrays = [np.atleast_1d(piece) for piece in pieces]
    axis = _sample_axis(arrays, counts)
    if axis is not None:
        arrays = [np.moveaxis(array, axis, 0) for array in arrays]
    elif set(counts) == {1} and len({array.shape for array in arrays}) == 1:
        arrays = [array[np.newaxis] for array in arrays]
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1:
        rows = ", ".join(str(list(shape)) for shape in sorted(shapes)[:3])
        raise MetricError(
            f"{option('metric')}: the shape of output '{name}' differs between samples "
            f"(rows of {rows})",
            f"Leave {option('metric')} out: it takes one array per output. Or give the model a "
            "fixed number of rows, for example by cutting off its non-maximum suppression.",
            code="QD-METRIC-SHAPES",
        )
    return arrays


def _sample_axis(arrays: Sequence[Array], counts: Sequence[int]) -> int | None:
    """The first axis that is as long as there are samples, in every execution: a recurrent network
    may give [time, samples, classes]. None where there is none, as of boxes without a batch."""
    for axis in range(min(array.ndim for array in arrays)):
        if all(a.shape[axis] == n for a, n in zip(arrays, counts, strict=True)):
            return axis
    return None


def top1(outputs: Outputs, labels: Outputs, _: Outputs) -> float:
    """The share of samples whose highest score, in the first output, is that of their label."""
    truth, classes = labels_of(labels), _classes(_first(outputs))
    if truth.size != len(classes):
        raise MetricError(
            f"{option('metric', 'top1')} needs one class number per sample: there are "
            f"{len(classes)} samples, and labels of shape {truth.shape}",
            "Give class numbers instead of one-hot labels, or a function of your own.",
            code="QD-METRIC-LABELS",
        )
    return float(np.mean(classes == truth.reshape(-1)))


def agreement(outputs: Outputs, _: Outputs, reference: Outputs) -> float:
    """The share of samples whose highest score is where the reference has it."""
    return float(np.mean(_classes(_first(outputs)) == _classes(_first(reference))))


@dataclass(frozen=True)
class Classes:
    """How many classes there are to choose from, and how many different ones are chosen."""

    count: int
    chosen: int


def classes_of(outputs: Outputs) -> Classes | None:
    """The classes of the first output, as `top1` and `agreement` see them; None without samples."""
    scores = _first(outputs)
    if not scores.size:
        return None
    return Classes(scores[0].size, len(np.unique(_classes(scores))))


def _first(outputs: Outputs) -> Array:
    if not outputs:
        raise MetricError(
            "the metric needs an output that is an array, and the model has none: sequences and "
            "maps are not observed",
            "Make an array the model's output.",
            code="QD-METRIC-OUTPUT",
        )
    return next(iter(outputs.values()))


def _classes(scores: Array) -> Array:
    """The index of the highest score; NaN never wins, so that a broken sample counts as wrong."""
    flat = scores.reshape(len(scores), -1).astype(np.float64)
    best = np.argmax(np.where(np.isnan(flat), -np.inf, flat), axis=1)
    return np.where(np.isnan(flat).all(axis=1), -1, best)


def _by_parameters(
    spec: str,
    called: Callable[..., Any],
    *,
    file: Path | None = None,
    function: Callable[..., Any] | None = None,
) -> TaskMetric:
    """A metric that gets what its parameters name."""
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):  # a function written in C may not say
        return TaskMetric(spec, True, _on_labels(called), file, function)
    wanted = [p.name for p in parameters if p.name in _GIVEN]
    required = [
        p
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        wanted = list(_GIVEN)
    others = [p for p in required if p.name not in _GIVEN]
    if len(others) == len(required) == 2 and not any(p.kind is p.KEYWORD_ONLY for p in others):
        return TaskMetric(spec, True, _on_labels(called), file, function, _NAME_THEM)
    if others:
        raise MetricError(
            f"{option('metric')}: {spec} takes a parameter '{others[0].name}'",
            "Its parameters must be among outputs, labels and reference, or be two: the labels and "
            "the predictions.",
            code="QD-METRIC-PARAMETERS",
        )

    def compute(outputs: Outputs, labels: Outputs, reference: Outputs) -> Any:
        given = dict(zip(_GIVEN, (outputs, labels, reference), strict=True))
        return called(**{name: given[name] for name in wanted})

    return TaskMetric(spec, False, compute, file, function)


def _from_module(spec: str, source: str, name: str) -> TaskMetric:
    try:
        module = load_module(source)
    except Exception as error:  # a module may raise anything while it is imported
        raise MetricError(
            f"{option('metric')}: module '{source}' cannot be imported: {last_line(error)}",
            code="QD-METRIC-FUNCTION",
        ) from error
    called = function_of(module, name, spec, _PROBLEM)
    return TaskMetric(spec, True, _on_labels(called))


def _on_labels(called: Callable[..., Any]) -> Callable[[Outputs, Outputs, Outputs], Any]:
    """The call that scikit-learn's metrics take."""

    def compute(outputs: Outputs, labels: Outputs, _: Outputs) -> Any:
        truth, scores = labels_of(labels), _first(outputs)
        whole = np.issubdtype(truth.dtype, np.integer) and scores.ndim == truth.ndim + 1
        return called(truth, np.argmax(scores, axis=-1) if whole else scores)

    return compute
