"""Groups of samples: what each loses.

Accuracy is rarely lost evenly: ranges of a calibration set of pictures by day clip those by night,
and a score of all samples hides that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qdebug.analyse.compared import Compared
from qdebug.analyse.metric_samples import judged_pair
from qdebug.errors import MetricError, SampleError
from qdebug.metrics.effect import noise_by_sample
from qdebug.metrics.uncertainty import of_noise
from qdebug.network.sampleaxis import sample_inputs
from qdebug.network.samples.groups import Grouping, grouping_of
from qdebug.network.samplespec import SampleSpec
from qdebug.results.groups import GroupResult, Groups, GroupScore
from qdebug.run.outputs import MetricEvaluator
from qdebug.types import Array
from qdebug.wording import option

Rows = npt.NDArray[np.int64]


def grouped(
    compared: Compared,
    *,
    grouping: Grouping | None,
    calibrates_on: SampleSpec | None,
    calibrated: Rows | None,
) -> Compared:
    """With each group of samples by itself; without groups as it is.

    Args:
        grouping: of the samples; None without groups.
        calibrates_on: what the ranges were gathered on; None for the samples that are compared.
        calibrated: the numbers of those samples; None where the ranges come from elsewhere.

    Raises:
        SampleError: the calibration samples cannot be read any more.
        MetricError: an output has another shape for some samples.
    """
    if grouping is None:
        return compared
    notes = list[str]()
    calibration = _calibration(compared, calibrates_on, calibrated, grouping, notes)
    measured = _Measured.of(compared, grouping, calibration)
    each = [measured.result(name, [k]) for k, name in enumerate(grouping.groups)]
    yardsticks = (True, False) if measured.has_scores else (False,)
    rankings = [measured.ranked(each, by_score=by_score) for by_score in yardsticks]
    ranking = next((r for r in rankings if r.is_worse), rankings[0])
    alone = [group.name for group in each if group.samples == 1]
    if alone:
        notes.append(
            f"The figures of groups by '{grouping.name}' that have a single sample say little of "
            f"their kind: {', '.join(alone[:3])}{' and others' * (len(alone) > 3)}."
        )
    return compared.found(
        *notes,
        groups=Groups(
            grouping.name,
            None if calibration is None else sum(calibration.values()),
            ranking.each,
            ranking.each[0].name if ranking.is_worse else None,
            ranking.others if ranking.is_worse else None,
            by_noise=not ranking.by_score,
        ),
    )


def _calibration(
    compared: Compared,
    calibrates_on: SampleSpec | None,
    calibrated: Rows | None,
    grouping: Grouping,
    notes: list[str],
) -> dict[str, int] | None:
    """How many calibration samples are of each group; None where that is not known, and why that is
    so in `notes`."""
    if calibrated is None:
        return None
    found: Grouping | None = grouping
    if calibrates_on is not None:
        samples = calibrates_on.open(sample_inputs(compared.pair.reference))
        try:
            found = grouping_of(samples)
        except SampleError:
            notes.append(
                f"{option('calib_data', samples.where)} has no '{grouping.name}': how many of its "
                "samples are of each group is not known."
            )
            return None
    assert found is not None
    return replace(found, numbers=found.numbers[calibrated]).counts


@dataclass(frozen=True)
class _Ranking:
    """Groups, the worst first.

    Attributes:
        others: all samples but those of the first.
        is_worse: whether the first loses more than the others beyond chance.
    """

    each: tuple[GroupResult, ...]
    others: GroupResult
    is_worse: bool
    by_score: bool


@dataclass(frozen=True)
class _Measured:
    """What was measured of all samples, from which that of some follows.

    Attributes:
        energies: as of NoiseSink; None where they cannot be told by sample.
        task, outputs: the metric, and what the candidate gave for it; None without one.
        higher_is_better: of the metric; None where that is not known.
    """

    grouping: Grouping
    calibration: Mapping[str, int] | None
    energies: Array | None
    task: MetricEvaluator | None
    outputs: Mapping[str, Array]
    higher_is_better: bool | None

    @classmethod
    def of(
        cls,
        compared: Compared,
        grouping: Grouping,
        calibration: Mapping[str, int] | None,
    ) -> _Measured:
        """Of a comparison with groups.

        Raises:
            MetricError: an output has another shape for some samples.
        """
        sinks, metric, task = compared.sinks, compared.metric, None
        outputs: Mapping[str, Array] = {}
        if metric is not None:
            reference, candidate = sinks.keepers
            task, outputs = (
                MetricEvaluator.of(metric, compared.samples, reference.checked()),
                candidate.joined(),
            )
            count = compared.samples.count
            if any(len(x) != count for x in (*task.reference.values(), *outputs.values())):
                task = None
        return cls(
            grouping,
            calibration,
            sinks.noise.energies,
            task,
            outputs,
            compared.result.metric.higher_is_better if compared.result.metric else None,
        )

    def result(self, name: str, groups: Sequence[int]) -> GroupResult:
        """What was measured of the samples of some groups, which are given by their positions."""
        rows = np.flatnonzero(np.isin(self.grouping.numbers, groups))
        calibrated = None
        if self.calibration is not None:
            calibrated = sum(self.calibration.get(self.grouping.groups[k], 0) for k in groups)
        noise, interval = None, None
        if self.energies is not None:
            noise = float(noise_by_sample(self.energies[:, :, rows]).sum())
            interval = of_noise(self.energies[:, :, rows])
        return GroupResult(name, len(rows), calibrated, noise, interval, self._score(rows))

    def _score(self, rows: Rows) -> GroupScore | None:
        if self.task is None:
            return None
        labels = {n: x[rows] if x.ndim else x for n, x in self.task.labels.items()}
        reference, outputs = (
            {name: array[rows] for name, array in arrays.items()}
            for arrays in (self.task.reference, self.outputs)
        )
        metric = self.task.metric
        try:
            found = judged_pair(MetricEvaluator(metric, labels, reference), outputs, len(rows))
        except MetricError:  # such as a curve of samples that are all of one class
            return None
        return GroupScore(found.reference.score, found.candidate.score, found.uncertainty(metric))

    @property
    def has_scores(self) -> bool:
        """Whether there is a metric by which a group may lose."""
        return self.task is not None and self.higher_is_better is not None

    def ranked(self, each: Sequence[GroupResult], *, by_score: bool) -> _Ranking:
        """The groups by what they lose of the metric, then by noise, or by noise alone."""

        def loss(group: GroupResult) -> tuple[float, float]:
            return self._lost(group) if by_score else 0.0, group.noise or 0.0

        ranked = sorted(each, key=loss, reverse=True)
        first = self.grouping.groups.index(ranked[0].name)
        others = self.result("", [k for k in range(len(self.grouping.groups)) if k != first])
        worse = self._scores_less if by_score else _is_noisier
        return _Ranking(tuple(ranked), others, worse(ranked[0], others), by_score)

    def _lost(self, group: GroupResult) -> float:
        """Of the metric; more is worse."""
        if group.score is None:
            return 0.0
        change = group.score.candidate - group.score.reference
        return -change if self.higher_is_better else change

    def _scores_less(self, group: GroupResult, others: GroupResult) -> bool:
        """Whether a group loses more of the metric: the intervals do not meet."""
        both = [g.score.uncertainty for g in (group, others) if g.score and g.score.uncertainty]
        if len(both) < 2:
            return False
        own, rest = (uncertainty.change for uncertainty in both)
        apart = own[1] < rest[0] if self.higher_is_better else own[0] > rest[1]
        return apart and self._lost(group) > 0  # the others may only have won more


def _is_noisier(group: GroupResult, others: GroupResult) -> bool:
    """Whether a group has more noise: the intervals do not meet."""
    if group.noise_interval is None or others.noise_interval is None:
        return False
    return group.noise_interval[0] > others.noise_interval[1]
