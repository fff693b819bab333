"""Whether FP32 finds anything, before anything is compared with what it finds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from qdebug.errors import MetricError
from qdebug.execute.context import Context, runner_of
from qdebug.metrics.accumulate import REFERENCE
from qdebug.metrics.tasks.base import TaskMetric, first_output
from qdebug.metrics.tasks.boxes.detections import DECISION
from qdebug.metrics.tasks.masks import masks_of
from qdebug.network.graph import Graph
from qdebug.network.samples.subset import SampleSubset
from qdebug.run.outputs import joined
from qdebug.run.variant import as_it_is
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
    if metric is None or not _is_looked_for(metric):
        return
    seen = _Seen(metric)
    variants = {REFERENCE: as_it_is(graph.proto, context.backend)}
    with closing(runner_of(context, subset).batches(variants)) as batches:
        for executed in batches:
            outputs = {t: executed.reference[t] for t in graph.outputs if t in executed.reference}
            if seen.object_in(joined({executed.batch: outputs})):
                return
    raise seen.nothing(subset.count)


def refuse_nothing(metric: TaskMetric, outputs: Mapping[str, Array], samples: int) -> None:
    """The same of outputs of FP32 that are there, [samples, …].

    Raises:
        MetricError: as above.
    """
    seen = _Seen(metric)
    if _is_looked_for(metric) and not seen.object_in(outputs):
        raise seen.nothing(samples)


def _is_looked_for(metric: TaskMetric) -> bool:
    return metric.takes_reference_as_truth and metric.takes in ("boxes", "mask")


@dataclass
class _Seen:
    """What FP32 was seen to find: the highest score of boxes, or the classes of pixels."""

    metric: TaskMetric
    highest: float = -math.inf
    classes: set[int] = field(default_factory=set)

    def object_in(self, outputs: Mapping[str, Array]) -> bool:
        """Whether there is an object in these outputs, or those before."""
        metric = self.metric
        if metric.takes == "boxes":
            assert metric.reading is not None  # metrics of boxes are built in
            found = metric.reading.found(outputs, outputs)
            self.highest = max(self.highest, float(found.scores.max(initial=-math.inf)))
            return self.highest >= DECISION
        array, name = first_output(outputs), next(iter(outputs), "")
        for one in array if array.dtype.hasobject else [array]:  # objects: of unequal size
            given = {name: one[np.newaxis] if array.dtype.hasobject else one}
            self.classes |= {*np.unique(masks_of(given, given, metric.facts).classes).tolist()}
        return len(self.classes) > 1

    def nothing(self, samples: int) -> MetricError:
        """That there is none in so many samples."""
        metric, on = self.metric, counted(samples, "sample")
        taken = f"{option('metric', metric.name)} takes what FP32 finds as the truth, and"
        if metric.takes == "boxes":
            return MetricError(
                f"{taken} FP32 finds no object with a score of {DECISION:g} or more in {on}: the "
                f"highest is {self.highest:.2g}",
                "Give samples with objects of the model's classes, prepared as in training "
                "(`qdebug check` tries other ways), and see that its outputs are read rightly: "
                f"{metric.described} ({option('decode')}).",
                code="QD-METRIC-NO-BOXES",
            )
        what = f"of class {min(self.classes)}" if self.classes else "missing"
        return MetricError(
            f"{taken} every pixel of its masks is {what} in {on}",
            "Give samples with something to find, prepared as in training (`qdebug check` tries "
            "other ways), and see that the first output is the mask.",
            code="QD-METRIC-EMPTY-MASK",
        )
