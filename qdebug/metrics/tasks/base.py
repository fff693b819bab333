"""What an end-to-end metric is: a score of the final outputs, its direction, and what it says of
single samples."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qdebug.errors import MetricError
from qdebug.metrics.tasks.facts import ModelFacts
from qdebug.network.samplespec import FOLDER
from qdebug.types import Array
from qdebug.userfile import digest_of, last_line, raising_line
from qdebug.wording import option

Float64 = npt.NDArray[np.float64]
Floats = npt.NDArray[np.floating[Any]]
Int64 = npt.NDArray[np.int64]
Outputs = Mapping[str, Array]
"""Arrays [samples, …] by name; of an output whose shape differs between samples, an array of
objects [samples], which are the samples' arrays. See `is_ragged`."""
Rows = npt.NDArray[np.int64]
"""Numbers of samples."""
Compute = Callable[[Outputs, Outputs, Outputs], Any]
"""`(outputs, labels, reference)`: the outputs, the arrays of the data that are not inputs, and the
outputs of the reference."""

LABEL_NAMES = ("labels", "label", "y_true", "y", "targets", "target")


@dataclass(frozen=True)
class SampleValues:
    """A function that gives one value for each sample, with its result checked.

    Attributes:
        of: the metric's name.
        what: the values, for people.
        compute: gives an array [samples].
        file: where the user's code is, to quote from when it raises.
    """

    of: str
    what: str
    compute: Compute
    file: Path | None = None

    def __call__(self, outputs: Outputs, labels: Outputs, reference: Outputs) -> Float64:
        """The values, float64 [samples]: finite or +inf.

        Raises:
            MetricError: it raised, or gave something else.
        """
        if is_ragged(outputs, reference):
            each = _single_samples(outputs, labels, reference)
            return np.concatenate([self(*single) for single in each])
        named = f"{self.what} of {option('metric', self.of)}"
        returned = called(self.compute, named, _arguments(outputs, labels, reference), self.file)
        samples = len(next(iter((outputs or reference).values())))
        try:
            values = np.asarray(returned, np.float64)
        except (TypeError, ValueError):
            problem = f"a {type(returned).__name__}"
        else:
            wrong = np.flatnonzero(np.isnan(values) | np.isneginf(values))
            if values.shape != (samples,):
                problem = f"an array of shape {list(values.shape)}"
            elif wrong.size:
                problem = f"{values[wrong[0]]} for sample {wrong[0]}"
            else:
                return values
        raise MetricError(
            f"{named}: the function returned {problem}",
            f"It must return one number for each of the {samples} samples, finite or +inf.",
            code="QD-METRIC-VALUE",
        )


@dataclass(frozen=True)
class Judged:
    """What a metric says of some outputs.

    Attributes:
        score: of all samples.
        left_out: of some of the samples each, float64 [sets].
        per_sample, loss: as of TaskMetric; None where it has none.
        boxes: of a metric of boxes, those next to the true ones; else None.
        worst_group: of samples, which decides the score; "" of a metric without groups.
    """

    score: float
    left_out: Float64
    per_sample: Float64 | None = None
    loss: Float64 | None = None
    boxes: BoxCounts | None = None
    worst_group: str = ""


@dataclass(frozen=True)
class BoxCounts:
    """Boxes next to the true ones.

    Attributes:
        kept: found and true.
        lost: true, and not found.
        new: found, and not true.
    """

    kept: int
    lost: int
    new: int

    @property
    def f1(self) -> float:
        """2·kept / (2·kept + lost + new); 1 where there is no box at all."""
        total = 2 * self.kept + self.lost + self.new
        return 2 * self.kept / total if total else 1.0


@dataclass(frozen=True)
class TaskMetric:
    """A named measure of end-to-end quality.

    Attributes:
        name: for people.
        needs_labels: there must be one array of labels.
        compute: gives the score, one number.
        file: where the user's code is, to quote from when it raises.
        function: the user's function, where it was given in memory.
        hint: what else to try where it raises.
        higher_is_better: of the score; True unless something else is declared.
        is_declared: `higher_is_better` was said by whoever wrote the metric, and is not the
            default: without that, analyse/metric_direction.py looks.
        is_share: the score is a share of the samples, each of which counts as one.
        takes_ragged: `compute` splits samples whose outputs differ in shape itself.
        bounds: the least and the largest score that there is, infinite where there is no such
            end; None where that is not known.
        loss: what each sample loses: float64 [samples], smooth, lower is better, comparable only
            between networks on the same samples; None where there is none.
        per_sample: the score of each sample, float64 [samples], where the score is their mean; else
            None.
        judge: gives all that the metric says at once, for which the outputs are read once; None to
            ask for each.
        reduced: what it needs of the outputs of some samples, [samples, …], in place of them: less,
            where they are masks or the places of a detector, with what they lose next to the
            reference's, if these are given. It takes the arguments of `compute` and gives None
            where that is hardly less; None where outputs are taken as they are.
        settled: the same metric, which has decided by the reference's outputs of all samples,
            [samples, …], how single values are read; None where there is nothing to decide.
        by_group: the score as if all samples lost as much as those of a group, by group, where the
            worst of them is the score; else None.
        takes: see BuiltInMetric; "" of a user's function.
        decode: as the user says how outputs are read; None where that follows from the model.
        facts: the model, where it is known.
        described: how outputs are read, for people; "" where nothing is chosen.
    """

    name: str
    needs_labels: bool
    compute: Compute
    file: Path | None = None
    function: Callable[..., Any] | None = None
    hint: str = ""
    higher_is_better: bool = True
    is_declared: bool = False
    is_share: bool = False
    takes_ragged: bool = False
    bounds: tuple[float, float] | None = None
    loss: SampleValues | None = None
    per_sample: SampleValues | None = None
    judge: Callable[[Iterable[Rows], Outputs, Outputs, Outputs], Judged] | None = None
    reduced: Callable[[Outputs, Outputs, Outputs], Outputs | None] | None = None
    settled: Callable[[Outputs], TaskMetric | None] | None = None
    by_group: Callable[[Outputs, Outputs, Outputs], Mapping[str, float]] | None = None
    takes: str = ""
    decode: str | None = None
    facts: ModelFacts | None = None
    described: str = ""

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest score that there may be."""
        if self.bounds is not None:
            return self.bounds
        return (0.0, 1.0) if self.is_share else (-math.inf, math.inf)

    @property
    def takes_reference_as_truth(self) -> bool:
        """Whether it is one of those by name that need no labels."""
        return bool(self.takes) and not self.needs_labels

    @property
    def key(self) -> str | None:
        """A key that identifies this metric, its code included; None where there is none, so that
        none of its results may be reused."""
        if self.function is not None:
            parts = (getattr(self.function, name, None) for name in ("loss", "per_sample"))
            digests = [digest_of(f) for f in (self.function, *parts) if f is not None]
            if None in digests:
                return None
            return f"{self.name} {self.higher_is_better} {' '.join(map(str, digests))}"
        if self.file is None:
            return " ".join(filter(None, (self.name, self.decode, self._decoder_digest)))
        function = self.name.rpartition(":")[2]
        code = hashlib.sha256(self.file.read_bytes()).hexdigest()
        return f"{self.file.resolve()}:{function} {code}"  # however the path is spelled

    def judged(
        self, outputs: Outputs, labels: Outputs, reference: Outputs, sets: Iterable[Rows] = ()
    ) -> Judged:
        """All that the metric says of some outputs, and its score of each of some `sets` of
        samples.

        Raises:
            MetricError: it raised, or gave something else than it should.
        """
        if is_ragged(outputs, reference):
            each = _single_samples(outputs, labels, reference)
            return _of_samples([self.judged(*single) for single in each], sets)
        named, given = option("metric", self.name), _arguments(outputs, labels, reference)
        if self.judge is not None:
            judged: Judged = called(partial(self.judge, sets), named, given, None)
            return replace(judged, score=_finite(judged.score, named))
        parts = ([rows_of(arrays, rows) for arrays in given.values()] for rows in sets)
        score, group = self.decided(outputs, labels, reference)
        return Judged(
            score,
            np.array([self(*part) for part in parts], np.float64),
            self.per_sample(outputs, labels, reference) if self.per_sample else None,
            self.loss(outputs, labels, reference) if self.loss else None,
            worst_group=group,
        )

    def decided(self, outputs: Outputs, labels: Outputs, reference: Outputs) -> tuple[float, str]:
        """The metric's value, and the group of samples that decides it; "" without groups.

        Raises:
            MetricError: as a call does.
        """
        if self.by_group is None:
            return self(outputs, labels, reference), ""
        scores = self.by_group(outputs, labels, reference)
        worst = (min if self.higher_is_better else max)(scores, key=lambda group: scores[group])
        return scores[worst], worst

    @property
    def _decoder_digest(self) -> str:
        """Of a user's file that says how outputs are read; else ""."""
        source = self.decode.rpartition(":")[0] if self.decode else ""
        return hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else ""

    def __call__(self, outputs: Outputs, labels: Outputs, reference: Outputs) -> float:
        """The metric's value: where an output's shape differs between samples, the mean of those
        of single samples.

        Raises:
            MetricError: it raised, or gave no finite number.
        """
        if is_ragged(outputs, reference) and not self.takes_ragged:
            return float(np.mean([self(*x) for x in _single_samples(outputs, labels, reference)]))
        named = option("metric", self.name)
        given = _arguments(outputs, labels, reference)
        return _finite(called(self.compute, named, given, self.file, self.hint), named)


def is_ragged(*outputs: Outputs) -> bool:
    """Whether the shape of some output differs between samples."""
    return any(array.dtype == object for arrays in outputs for array in arrays.values())


def _single_samples(
    outputs: Outputs, labels: Outputs, reference: Outputs
) -> list[tuple[Outputs, Outputs, Outputs]]:
    """What a metric gets for each sample by itself, as [1, …]."""

    def single(arrays: Outputs, k: int) -> Outputs:
        return {
            name: array[k][np.newaxis] if array.dtype == object else array[k : k + 1]
            for name, array in arrays.items()
        }

    count = len(next(iter((outputs or reference).values())))
    return [
        (single(outputs, k), rows_of(labels, np.array([k])), single(reference, k))
        for k in range(count)
    ]


def _of_samples(each: Sequence[Judged], sets: Iterable[Rows]) -> Judged:
    """What is said of all samples, from what is said of each by itself."""
    scores = np.array([judged.score for judged in each])
    losses = [judged.loss for judged in each if judged.loss is not None]
    boxes = [astuple(judged.boxes) for judged in each if judged.boxes is not None]
    return Judged(
        score=float(scores.mean()),
        left_out=np.array([scores[rows].mean() for rows in sets], np.float64),
        per_sample=scores,
        loss=np.concatenate(losses) if losses else None,
        boxes=BoxCounts(*map(sum, zip(*boxes, strict=True))) if boxes else None,
    )


def _arguments(outputs: Outputs, labels: Outputs, reference: Outputs) -> dict[str, Outputs]:
    """Of Compute, by name."""
    return {"outputs": outputs, "labels": labels, "reference": reference}


def _finite(returned: Any, named: str) -> float:
    """The number that a metric returned.

    Raises:
        MetricError: it is none, or not finite.
    """
    hint = "It must return one finite number."
    try:
        value = float(returned)
    except OverflowError:
        problem = "a number that is too large for a float"
    except (TypeError, ValueError):
        problem = f"a {type(returned).__name__}, which is not a number"
    else:
        if math.isfinite(value):
            return value
        problem = f"{value}, which is not a finite number"
    raise MetricError(f"{named} returned {problem}", hint, code="QD-METRIC-VALUE")


def rows_of(arrays: Outputs, rows: Rows) -> Outputs:
    """Those of some samples; what is no array of samples stays."""
    return {name: array[rows] if array.ndim else array for name, array in arrays.items()}


def called(
    function: Callable[..., Any],
    named: str,
    arguments: Mapping[str, Outputs],
    file: Path | None,
    hint: str = "",
) -> Any:
    """What a function returns, which may be the user's.

    Args:
        named: the function, for people.
        arguments: by position; the names are for people.
        file: where the user's code is.
        hint: what else to try; "" describes the arguments.

    Raises:
        MetricError: it raised.
    """
    try:
        return function(*arguments.values())
    except MetricError:
        raise
    except Exception as error:  # the user's code may raise anything
        hint = " ".join(filter(None, (raising_line(error, file), hint or _shapes_of(arguments))))
        message = f"{named} raised {last_line(error)}"
        raise MetricError(message, hint, code="QD-METRIC-RAISED") from error


def _shapes_of(arguments: Mapping[str, Outputs]) -> str:
    """What a metric gets, for people: the arrays are in dicts, which its author may not know."""
    shapes = (
        f"{name} = {{{', '.join(f'{k!r}: {list(np.shape(v))}' for k, v in arrays.items())}}}"
        for name, arrays in arguments.items()
    )
    return f"It is given dicts of arrays, of these shapes: {'; '.join(shapes)}."


def is_share(metric: TaskMetric | None) -> bool:
    """Whether there is a metric that is a share of the samples."""
    return metric is not None and metric.is_share


def first_output(outputs: Outputs) -> Array:
    """The first output, [samples, …].

    Raises:
        MetricError: there is none.
    """
    if not outputs:
        raise MetricError(
            "the metric needs an output that is an array, and the model has none: sequences and "
            "maps are not observed",
            "Make an array the model's output.",
            code="QD-METRIC-OUTPUT",
        )
    return next(iter(outputs.values()))


def labels_of(extras: Outputs) -> Array:
    """The one array of labels.

    Raises:
        MetricError: there is none, or it is not clear which one it is.
    """
    for name in LABEL_NAMES:
        if name in extras:
            return extras[name]
    others = [name for name in extras if name != FOLDER]
    if len(others) == 1:
        return extras[others[0]]
    found = (
        f"the arrays that are not inputs are {', '.join(extras)}" if extras else "there are none"
    )
    raise MetricError(
        f"the metric needs labels, but {found}",
        "Add an array 'labels' with one entry per sample to the data.",
        code="QD-METRIC-LABELS",
    )


def join_outputs(parts: Mapping[str, Sequence[Array]], counts: Sequence[int]) -> dict[str, Array]:
    """Outputs of several executions, by name, as one array each; see Outputs.

    Args:
        counts: the samples of each execution.

    Raises:
        MetricError: as `by_sample`.
    """
    return {name: _joined(by_sample(name, pieces, counts)) for name, pieces in parts.items()}


def _joined(arrays: Sequence[Array]) -> Array:
    if len({array.shape[1:] for array in arrays}) == 1:
        return np.concatenate(arrays)
    return _separate([row.copy() for array in arrays for row in array])


def _separate(rows: Sequence[Array]) -> Array:
    """An array of objects, each the array of a sample."""
    joined = np.empty(len(rows), object)
    for k, row in enumerate(rows):
        joined[k] = row
    return joined


def separated(outputs: Outputs) -> Outputs:
    """The same, as if their shapes differed between samples: to be scored sample by sample beside
    others whose shapes do."""
    return {name: _separate([*array]) for name, array in outputs.items()}


def by_sample(name: str, pieces: Sequence[Array], counts: Sequence[int]) -> list[Array]:
    """An output of several executions, as arrays [samples, …]; `counts` are the samples of each.

    Raises:
        MetricError: their shapes differ, and it is not known what belongs to which sample.
    """
    arrays = [np.atleast_1d(piece) for piece in pieces]
    axis = sample_axis([array.shape for array in arrays], counts)
    if axis:
        arrays = [np.moveaxis(array, axis, 0) for array in arrays]
    elif axis is None and set(counts) == {1}:
        arrays = [array[np.newaxis] for array in arrays]
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1 and axis is None and set(counts) != {1}:
        rows = ", ".join(str(list(shape)) for shape in sorted(shapes)[:3])
        raise MetricError(
            f"{option('metric')}: the shape of output '{name}' differs between samples "
            f"(rows of {rows}), and no axis is as long as there are samples in an execution",
            f"Give {option('batch_size', '1')}, so that each execution has one sample, or leave "
            f"{option('metric')} out.",
            code="QD-METRIC-SHAPES",
        )
    return arrays


def sample_axis(shapes: Sequence[Sequence[int]], counts: Sequence[int]) -> int | None:
    """The first axis that is as long as there are samples, in every execution: a recurrent network
    may give [time, samples, classes]. None where there is none, as of boxes without a batch."""
    for axis in range(min(len(shape) for shape in shapes)):
        if all(shape[axis] == n for shape, n in zip(shapes, counts, strict=True)):
            return axis
    return None
