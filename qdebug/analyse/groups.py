"""Groups of samples: what each loses.

Accuracy is rarely lost evenly: ranges of a calibration set of pictures by day clip those by night,
and a score of all samples hides that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from qdebug.analyse.compared import Compared
from qdebug.analyse.metric_samples import judged_pair
from qdebug.errors import MetricError, SampleError
from qdebug.metrics.effect import noise_by_sample
from qdebug.metrics.uncertainty import Interval, of_noise
from qdebug.network.sampleaxis import sample_inputs
from qdebug.network.samples.groups import Grouping, grouping_of
from qdebug.network.samplespec import SampleSpec
from qdebug.results.groups import GroupResult, Groups, GroupScore
from qdebug.run.outputs import MetricEvaluator, joined
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
    figures, metric = _Figures.of_all(compared), compared.result.metric

    def of(name: str, numbers: Sequence[int]) -> GroupResult:
        names = [grouping.groups[k] for k in numbers]
        known = None if calibration is None else sum(calibration.get(n, 0) for n in names)
        return figures.of(name, np.flatnonzero(np.isin(grouping.numbers, numbers)), known)

    each = [of(name, [k]) for k, name in enumerate(grouping.groups)]
    yardsticks: list[Callable[[GroupResult], _Loss]] = [_by_noise]
    if figures.task is not None and metric is not None and metric.higher_is_better is not None:
        yardsticks.insert(0, partial(_by_score, higher_is_better=metric.higher_is_better))
    found = []
    for loss in yardsticks:
        order = [(loss(group)[0], group.noise or 0.0) for group in each]
        ranked = [each[k] for k in sorted(range(len(each)), key=order.__getitem__, reverse=True)]
        first = ranked[0]
        others = of("", [k for k, name in enumerate(grouping.groups) if name != first.name])
        is_worse = _is_worse(loss(first), loss(others))
        found.append(
            Groups(
                grouping.name,
                None if calibration is None else sum(calibration.values()),
                tuple(ranked),
                first.name if is_worse else None,
                others if is_worse else None,
                by_noise=loss is _by_noise,
            )
        )
    alone = [group.name for group in each if group.samples == 1]
    if alone:
        notes.append(
            f"The figures of groups by '{grouping.name}' that have a single sample say little of "
            f"their kind: {', '.join(alone[:3])}{' and others' * (len(alone) > 3)}."
        )
    told = next((groups for groups in found if groups.worst is not None), found[0])
    return compared.found(*notes, groups=told)


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
class _Figures:
    """What was measured of all samples, from which that of some follows.

    Attributes:
        energies: as of PairErrors; None where they cannot be told by sample.
        task, outputs: the metric, and what the candidate gave for it; None without one, and where
            it is not known what of an output is which sample's.
    """

    energies: Array | None
    task: MetricEvaluator | None
    outputs: Mapping[str, Array]

    @classmethod
    def of_all(cls, compared: Compared) -> _Figures:
        """Of a comparison.

        Raises:
            MetricError: an output has another shape for some samples.
        """
        energies, metric = compared.measured.energies, compared.metric
        if metric is None:
            return cls(energies, None, {})
        reference, candidate = compared.measured.needed()
        task = MetricEvaluator.of(metric, compared.samples, reference)
        outputs, count = joined(candidate), compared.samples.count
        fits = all(len(x) == count for x in (*task.reference.values(), *outputs.values()))
        return cls(energies, task if fits else None, outputs)

    def of(self, name: str, rows: Rows, calibrated: int | None) -> GroupResult:
        """What was measured of some samples."""
        noise, interval = None, None
        if self.energies is not None:
            noise = float(noise_by_sample(self.energies[:, :, rows]).sum())
            interval = of_noise(self.energies[:, :, rows])
        return GroupResult(name, len(rows), calibrated, noise, interval, self._score(rows))

    def _score(self, rows: Rows) -> GroupScore | None:
        if self.task is None:
            return None
        labels, reference, outputs = (
            {name: array[rows] if array.ndim else array for name, array in arrays.items()}
            for arrays in (self.task.labels, self.task.reference, self.outputs)
        )
        task = MetricEvaluator(self.task.metric, labels, reference)
        try:
            found = judged_pair(task, outputs, len(rows))
        except MetricError:  # such as a curve of samples that are all of one class
            return None
        uncertainty = found.uncertainty(task.metric)
        return GroupScore(found.reference.score, found.candidate.score, uncertainty)


_Loss = tuple[float, Interval | None]
"""What a group loses, more being worse, and its 95 % interval; None where that is not known."""


def _by_noise(group: GroupResult) -> _Loss:
    return group.noise or 0.0, group.noise_interval


def _by_score(group: GroupResult, higher_is_better: bool) -> _Loss:
    if group.score is None:
        return 0.0, None
    sign = -1 if higher_is_better else 1
    lost = sign * (group.score.candidate - group.score.reference)
    if group.score.uncertainty is None:
        return lost, None
    low, high = sorted(sign * end for end in group.score.uncertainty.change)
    return lost, (low, high)


def _is_worse(one: _Loss, others: _Loss) -> bool:
    """Whether one loses more beyond chance: the intervals do not meet. The others may only have
    won more."""
    return bool(one[0] > 0 and one[1] and others[1] and one[1][0] > others[1][1])
