"""Groups of samples in a calibration: how many are of each, and ranges for which every group counts
alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from qdebug.calibrators.histogram import TensorHistogram
from qdebug.errors import UsageError
from qdebug.execute.context import Context
from qdebug.execute.gather import gather_ranges
from qdebug.network.graph import Graph
from qdebug.network.samples import Batch
from qdebug.network.samples.groups import Grouping
from qdebug.network.samples.subset import SampleSubset
from qdebug.results.calibrate import GroupShare
from qdebug.wording import option, printable

BALANCED = "balanced"
"""What follows the name of a method whose ranges come from balanced samples."""


def shares(
    calibration: SampleSubset,
    held_out: SampleSubset,
    of_calibration: Grouping | None,
    of_held_out: Grouping | None,
) -> tuple[GroupShare, ...]:
    """How many samples of each group calibrate, and how many are held out; none without groups."""
    if of_calibration is None or of_held_out is None:
        return ()
    mine = replace(of_calibration, numbers=of_calibration.numbers[calibration.indices]).counts
    others = replace(of_held_out, numbers=of_held_out.numbers[held_out.indices]).counts
    return tuple(GroupShare(n, mine.get(n, 0), others.get(n, 0)) for n in {**mine, **others})


def balanced_histograms(
    context: Context,
    graph: Graph,
    calibration: SampleSubset,
    grouping: Grouping,
    *,
    tensors: list[str],
) -> Mapping[str, TensorHistogram]:
    """The histograms of `tensors` in which every group counts as much as the largest: the values of
    a smaller one are counted so many times, in whole numbers.

    Raises:
        UsageError: samples are run in batches, which hold several groups.
        QdebugError: samples cannot be read, or the model does not run.
    """
    samples = calibration.samples
    if samples.batch_is_free:
        samples = samples.with_batch_size(1)
    numbers, chosen = grouping.numbers, set(calibration.indices)
    batches = [b for b in samples.batches() if b.start in chosen]
    by_group: dict[int, list[Batch]] = {}
    for batch in batches:
        of = set(numbers[batch.start : batch.start + batch.count].tolist())
        if len(of) > 1:
            raise UsageError(
                f"{option('balance')}: the model takes batches of {samples.batch_size}, and sample "
                f"{batch.start} is in one with others of another group",
                "Export the model with a dynamic batch axis, or sort the samples by group.",
                code="QD-USAGE-BALANCE",
            )
        by_group.setdefault(of.pop(), []).append(batch)
    most = max(sum(b.count for b in own) for own in by_group.values())
    found: dict[str, list[TensorHistogram]] = {}
    for group in by_group.values():
        own = SampleSubset(samples, tuple(group))
        gathered = gather_ranges(context, graph, own, tensors=tensors)
        times = round(most / own.count)
        for name, histogram in gathered.histograms.items():
            found.setdefault(name, []).append(repeated(histogram, times))
    return {name: reduce(TensorHistogram.merge, each) for name, each in found.items()}


def unchanged_note(groups: Sequence[GroupShare]) -> str:
    """That no method's ranges were changed by letting every group count alike, and why."""
    counts = [group.calibration_samples for group in groups if group.calibration_samples]
    if round(max(counts) / min(counts)) == 1:
        sizes = ", ".join(f"{printable(g.name)} {g.calibration_samples}" for g in groups)
        why = f"the groups that calibrate are of about one size already ({sizes})"
    else:
        why = "the methods take the largest magnitudes, which are those of all samples in any case"
    return f"{option('balance')} changes no range: {why}."


def repeated(histogram: TensorHistogram, times: int) -> TensorHistogram:
    """As if each value had been seen so many times."""
    return replace(
        histogram,
        count=histogram.count * times,
        zeros=histogram.zeros * times,
        nan_count=histogram.nan_count * times,
        inf_count=histogram.inf_count * times,
        total_sq=histogram.total_sq * times,
        samples=histogram.samples * times,
        sample_amax_total=histogram.sample_amax_total * times,
        table=histogram.table * np.int64(times),
    )
