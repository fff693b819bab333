"""What an end-to-end metric is: a score of the final outputs, its direction, and what it says of
single samples."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
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
Arguments = tuple[Any, ...]
"""What the functions of a metric are called with: arrays [samples, …], arrays by name, or what has
a method `take` for the rows of some samples. Of a user's function `(outputs, labels, reference)`:
the outputs, the arrays of the data that are not inputs, and the outputs of the reference; of a
metric by name what is found in them, see BuiltInMetric."""
Read = Callable[[Outputs, Outputs, Outputs], Arguments]

LOSSES = "reduced losses"
"""Of the array of what each sample loses: of reduced outputs it cannot be told any more."""
LABEL_NAMES = ("labels", "label", "y_true", "y", "targets", "target")


@dataclass(frozen=True)
class SampleValues:
    """A function that gives one value for each sample, with its result checked.

    Attributes:
        of: the metric's name.
        what: the values, for people.
        compute: gives an array [samples].
        read: gives its arguments.
        file: where the user's code is, to quote from when it raises.
    """

    of: str
    what: str
    compute: Callable[..., Any]
    read: Read
    file: Path | None = None

    def __call__(self, outputs: Outputs, labels: Outputs, reference: Outputs) -> Float64:
        """The values, float64 [samples]: finite or +inf.

        Raises:
            MetricError: it raised, or gave something else.
        """
        if is_ragged(outputs, reference):
            each = _single_samples(outputs, labels, reference)
            return np.concatenate([self(*single) for single in each])
        samples = len(next(iter((outputs or reference).values())))
        return self.values(self.read(outputs, labels, reference), samples)

    def values(self, arguments: Arguments, samples: int) -> Float64:
        """The same, from the arguments.

        Raises:
            MetricError: as above.
        """
        named = f"{self.what} of {option('metric', self.of)}"
        returned = called(self.compute, named, arguments, self.file)
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


class Reading:
    """How the metrics of one kind read outputs and labels: see BuiltInMetric.takes.

    Attributes:
        described: how the outputs are read, for people; "" where nothing is chosen.
        decoder: the decoder, or the user's function, by which boxes are read; else "".
    """

    described = ""
    decoder = ""

    def __init__(self, name: str, facts: ModelFacts | None, decode: str | None) -> None:
        """Of the metric called `name`; `facts` are None where no model is known yet, `decode` is
        what the user says.

        Raises:
            MetricError: the model's outputs are not what the metric takes, or `decode` is not
                known.
        """
        self.name, self.facts = name, facts
        if decode is not None:
            raise MetricError(
                f"{option('decode')}: {name} takes the outputs as they are",
                f"Leave {option('decode')} out.",
                code="QD-METRIC-DECODE",
            )

    def found(self, outputs: Outputs, reference: Outputs) -> Any:
        """What the metric takes, from outputs, beside the reference's of the same samples."""
        return first_output(outputs)

    def labelled(self, labels: Outputs, found: Any) -> Any:
        """The truth from the labels, and what was found in the outputs.

        Raises:
            MetricError: the labels do not fit.
        """
        raise NotImplementedError

    def truth(self, found: Any) -> Any:
        """The truth from what was found in the reference."""
        return found

    def reduced(self, found: Any) -> dict[str, Array] | None:
        """What of the found is enough for the score, as arrays [samples, …] that `found` takes in
        place of outputs; None where that takes hardly less."""
        return None

    def check_labels(self, labels: Outputs) -> None:
        """That there are labels of the right kind.

        Raises:
            MetricError: there are none.
        """
        labels_of(labels)


def _as_it_is(outputs: Outputs, labels: Outputs, reference: Outputs) -> Outputs | None:
    return None


@dataclass(frozen=True)
class TaskMetric:
    """A named measure of end-to-end quality.

    Attributes:
        name: for people.
        needs_labels: there must be one array of labels.
        read: gives the arguments of its functions.
        compute: gives the score, one number.
        loss: what each sample loses: float64 [samples], smooth, lower is better, comparable only
            between networks on the same samples; None where there is none.
        per_sample: the score of each sample, float64 [samples], where the score is their mean; else
            None.
        counts: gives BoxCounts, of a metric of boxes.
        by_group: the score as if all samples lost as much as those of a group, by group, where the
            worst of them is the score; else None.
        reduced: what it needs of the outputs of some samples, [samples, …], in place of them: less,
            where they are masks or the places of a detector, with what they lose next to the
            reference's, if these are given. None where that is hardly less.
        higher_is_better: of the score; True unless something else is declared.
        is_declared: `higher_is_better` was said by whoever wrote the metric, and is not the
            default: without that, analyse/metric_direction.py looks.
        is_share: the score is a share of the samples, each of which counts as one.
        bounds: the least and the largest score that there is, infinite where there is no such
            end; None where that is not known.
        file: where the user's code is, to quote from when it raises.
        function: the user's function, where it was given in memory.
        hint: what else to try where it raises.
        takes: see BuiltInMetric; "" of a user's function.
        reading: how it reads outputs; None of a user's function.
        decode: as the user says how outputs are read; None where that follows from the model.
        facts: the model, where it is known.
    """

    name: str
    needs_labels: bool
    read: Read
    compute: Callable[..., Any]
    loss: SampleValues | None = None
    per_sample: SampleValues | None = None
    counts: Callable[..., BoxCounts] | None = None
    by_group: Callable[..., Mapping[str, float]] | None = None
    reduced: Callable[[Outputs, Outputs, Outputs], Outputs | None] = _as_it_is
    higher_is_better: bool = True
    is_declared: bool = False
    is_share: bool = False
    bounds: tuple[float, float] | None = None
    file: Path | None = None
    function: Callable[..., Any] | None = None
    hint: str = ""
    takes: str = ""
    reading: Reading | None = None
    decode: str | None = None
    facts: ModelFacts | None = None

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest score that there may be."""
        if self.bounds is not None:
            return self.bounds
        return (0.0, 1.0) if self.is_share else (-math.inf, math.inf)

    @property
    def described(self) -> str:
        """How outputs are read, for people; "" where nothing is chosen."""
        return self.reading.described if self.reading else ""

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
        source = self.file or (self.decode or "").rpartition(":")[0]
        code = hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else ""
        if self.file is None:
            return " ".join(filter(None, (self.name, self.decode, code)))
        function = self.name.rpartition(":")[2]
        return f"{self.file.resolve()}:{function} {code}"  # however the path is spelled

    def judged(
        self, outputs: Outputs, labels: Outputs, reference: Outputs, sets: Iterable[Rows] = ()
    ) -> Judged:
        """All that the metric says of some outputs, which are read once, and its score of each of
        some `sets` of samples.

        Raises:
            MetricError: it raised, or gave something else than it should.
        """
        if self._is_by_sample(outputs, reference):
            each = _single_samples(outputs, labels, reference)
            return _of_samples([self.judged(*single) for single in each], sets)
        arguments = self.read(outputs, labels, reference)
        score, group = self._score(arguments)  # first: what it works out is taken for the parts
        parts = (tuple(taken(each, rows) for each in arguments) for rows in sets)
        left_out = np.array([self._score(part)[0] for part in parts], np.float64)
        samples = len(next(iter((outputs or reference).values())))
        per_sample, loss = (
            values.values(arguments, samples) if values else None
            for values in (self.per_sample, self.loss)
        )
        boxes = self.counts(*arguments) if self.counts else None
        return Judged(score, left_out, per_sample, loss, boxes, group)

    def decided(self, outputs: Outputs, labels: Outputs, reference: Outputs) -> tuple[float, str]:
        """The metric's value, and the group of samples that decides it; "" without groups. Where an
        output's shape differs between samples, the mean of the values of single samples.

        Raises:
            MetricError: it raised, or gave no finite number.
        """
        if self._is_by_sample(outputs, reference):
            each = _single_samples(outputs, labels, reference)
            return float(np.mean([self(*single) for single in each])), ""
        return self._score(self.read(outputs, labels, reference))

    def __call__(self, outputs: Outputs, labels: Outputs, reference: Outputs) -> float:
        """The metric's value; see `decided`."""
        return self.decided(outputs, labels, reference)[0]

    def _is_by_sample(self, outputs: Outputs, reference: Outputs) -> bool:
        return self.by_group is None and is_ragged(outputs, reference)

    def _score(self, arguments: Arguments) -> tuple[float, str]:
        if self.by_group is not None:
            scores = self.by_group(*arguments)
            worst = (min if self.higher_is_better else max)(scores, key=lambda name: scores[name])
            return scores[worst], worst
        named = option("metric", self.name)
        return _finite(called(self.compute, named, arguments, self.file, self.hint), named), ""


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


def _finite(returned: Any, named: str) -> float:
    """The number that a metric returned.

    Raises:
        MetricError: it is none, or not finite.
    """
    try:
        value = float(returned)
    except (OverflowError, TypeError, ValueError):
        problem = f"a {type(returned).__name__}, which is not a number of 64 bits"
    else:
        if math.isfinite(value):
            return value
        problem = f"{value}, which is not a finite number"
    hint = "It must return one finite number."
    raise MetricError(f"{named} returned {problem}", hint, code="QD-METRIC-VALUE")


def rows_of(arrays: Outputs, rows: Rows) -> Outputs:
    """Those of some samples; what is no array of samples stays."""
    return {name: array[rows] if array.ndim else array for name, array in arrays.items()}


def taken(argument: Any, rows: Rows) -> Any:
    """An argument of a metric's functions, of some samples; see Arguments."""
    if isinstance(argument, Mapping):
        return rows_of(argument, rows)
    return argument[rows] if isinstance(argument, np.ndarray) else argument.take(rows)


def called(
    function: Callable[..., Any],
    named: str,
    arguments: Arguments,
    file: Path | None,
    hint: str = "",
) -> Any:
    """What a function returns, which may be the user's.

    Args:
        named: the function, for people.
        arguments: by position.
        file: where the user's code is.
        hint: what else to try; "" describes the arguments: arrays are in dicts, which its author
            may not know.

    Raises:
        MetricError: it raised.
    """
    try:
        return function(*arguments)
    except MetricError:
        raise
    except Exception as error:  # the user's code may raise anything
        shapes = (
            f"{name} = {{{', '.join(f'{k!r}: {list(np.shape(v))}' for k, v in arrays.items())}}}"
            for name, arrays in zip(("outputs", "labels", "reference"), arguments, strict=False)
            if isinstance(arrays, Mapping)
        )
        given = f"It is given dicts of arrays, of these shapes: {'; '.join(shapes)}."
        hint = " ".join(filter(None, (raising_line(error, file), hint or given)))
        message = f"{named} raised {last_line(error)}"
        raise MetricError(message, hint, code="QD-METRIC-RAISED") from error


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
    others = [name for name in extras if name != FOLDER]
    named = [name for name in LABEL_NAMES if name in extras] or others
    if named and (named[0] in LABEL_NAMES or len(others) == 1):
        return extras[named[0]]
    raise MetricError(
        f"the metric needs labels, but {arrays_there(extras)}",
        "Add an array 'labels' with one entry per sample to the data.",
        code="QD-METRIC-LABELS",
    )


def arrays_there(extras: Outputs) -> str:
    """Which arrays beside the inputs there are, for a message about labels."""
    return f"the arrays that are not inputs are {', '.join(extras)}" if extras else "there are none"


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
