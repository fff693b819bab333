"""Whether FP32 finds anything, before anything is compared with what it finds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing
from typing import Protocol

import numpy as np

from qdebug.errors import MetricError
from qdebug.execute.context import Context
from qdebug.execute.evaluator import executed_batches, run_of
from qdebug.metrics.accumulate import REFERENCE
from qdebug.metrics.tasks.base import TaskMetric, first_output
from qdebug.metrics.tasks.boxes.detections import DECISION, Candidates
from qdebug.metrics.tasks.facts import ModelFacts
from qdebug.metrics.tasks.kinds import reading
from qdebug.metrics.tasks.masks import masks_of
from qdebug.metrics.tasks.registry import built_in
from qdebug.metrics.tasks.worst_group import metric_of
from qdebug.network.graph import Graph
from qdebug.network.samples.subset import SampleSubset
from qdebug.run.outputs import joined
from qdebug.types import Array
from qdebug.wording import counted, option


def check_objects(
    context: Context, graph: Graph, subset: SampleSubset, metric: TaskMetric | None
) -> None:
    """Refuse a metric that takes what FP32 finds as the truth where FP32 finds nothing, no box or
    the same class for every pixel: nobody waits for the candidate to hear that. FP32 runs until the
    first object is found.

    Raises:
        MetricError: it finds none, or the outputs are not what the metric takes.
        QdebugError: samples cannot be read, or the model does not run.
    """
    seen = _seen_by(metric)
    if metric is None or seen is None:
        return
    with closing(context.backend.open(graph.proto, ())) as session:
        runs = {REFERENCE: run_of(session)}
        for executed in executed_batches(subset, runs, 1, ends_at=context.ends_at):
            given = executed.reference
            outputs = {t: given[t] for t in graph.outputs if t in given}
            if seen.object_in(joined({executed.batch: outputs})):
                return
    raise seen.nothing(metric, subset.count)


def refuse_nothing(metric: TaskMetric, outputs: Mapping[str, Array], samples: int) -> None:
    """The same of outputs of FP32 that are there, [samples, …].

    Raises:
        MetricError: as above.
    """
    seen = _seen_by(metric)
    if seen is not None and not seen.object_in(outputs):
        raise seen.nothing(metric, samples)


class _Seen(Protocol):
    """What FP32 was seen to find."""

    def object_in(self, outputs: Mapping[str, Array]) -> bool:
        """Whether there is an object in these outputs, or those before."""

    def nothing(self, metric: TaskMetric, samples: int) -> MetricError:
        """That there is none in so many samples."""


def _seen_by(metric: TaskMetric | None) -> _Seen | None:
    """None where nothing is looked for: of a metric with labels, or of another kind."""
    if metric is None or not metric.takes_reference_as_truth:
        return None
    if metric.takes == "boxes":
        return _Boxes(metric)
    return _Pixels(metric) if metric.takes == "mask" else None


class _Boxes:
    def __init__(self, metric: TaskMetric) -> None:
        entry = built_in(metric_of(metric.name))
        assert entry is not None  # those of boxes are built in
        self._found, self._most = reading(entry, metric.facts, metric.decode).found, -math.inf

    def object_in(self, outputs: Mapping[str, Array]) -> bool:
        candidates: Candidates = self._found(outputs, outputs)
        self._most = max(self._most, float(candidates.scores.max(initial=-math.inf)))
        return self._most >= DECISION

    def nothing(self, metric: TaskMetric, samples: int) -> MetricError:
        is_known = math.isfinite(self._most)
        highest = f"the highest score is {self._most:.2g}" if is_known else "it gives no scores"
        return MetricError(
            f"{option('metric', metric.name)} takes what FP32 finds as the truth, and FP32 finds "
            f"no object with a score of {DECISION:g} or more in {counted(samples, 'sample')}: "
            f"{highest}",
            "Give samples with objects of the model's classes, prepared as in training (`qdebug "
            f"check` tries other ways), and see that its outputs are read rightly: "
            f"{metric.described} ({option('decode')}).",
            code="QD-METRIC-NO-BOXES",
        )


class _Pixels:
    def __init__(self, metric: TaskMetric) -> None:
        self._facts: ModelFacts | None = metric.facts
        self._classes: set[int] = set()
        self._low, self._high = math.inf, -math.inf

    def object_in(self, outputs: Mapping[str, Array]) -> bool:
        name, array = next(iter(outputs), ""), first_output(outputs)
        if array.dtype.hasobject:  # samples of unequal size
            return any(self.object_in({name: one[np.newaxis]}) for one in array)
        values = array[np.isfinite(array)].astype(np.float64)
        self._low = min(self._low, float(values.min(initial=math.inf)))
        self._high = max(self._high, float(values.max(initial=-math.inf)))
        seen = {name: np.array([self._low, self._high])}  # which tell shares from logits
        self._classes |= {*np.unique(masks_of(outputs, seen, self._facts).classes).tolist()}
        return len(self._classes) > 1

    def nothing(self, metric: TaskMetric, samples: int) -> MetricError:
        what = f"is of class {min(self._classes)}" if self._classes else "is missing"
        held = f"are {self._low:.2g} to {self._high:.2g}"
        if self._low > self._high:
            held = "are NaN or Inf"
        return MetricError(
            f"{option('metric', metric.name)} takes FP32's masks as the truth, and every pixel of "
            f"them {what} in {counted(samples, 'sample')}: values of the output "
            f"{held}",
            "Give samples with something to find, prepared as in training (`qdebug check` tries "
            "other ways), and see that the first output is the mask.",
            code="QD-METRIC-EMPTY-MASK",
        )
