"""Which samples calibrate and which are held out to evaluate the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from qdebug.errors import SampleError, UsageError
from qdebug.network.samples import Batch, Samples
from qdebug.network.samples.groups import Grouping, grouping_of
from qdebug.network.samplespec import SampleSpec
from qdebug.types import Feeds, TensorSpec
from qdebug.wording import counted, option

_LOOKED_AT = 4
"""Samples that are compared to tell whether two sets are the same."""


@dataclass(frozen=True)
class SampleSubset:
    """Some executions of a set of samples."""

    samples: Samples
    batches: tuple[Batch, ...]

    @property
    def count(self) -> int:
        """How many samples they hold."""
        return sum(batch.count for batch in self.batches)

    @property
    def indices(self) -> list[int]:
        """The numbers of the samples, in order."""
        return [i for batch in self.batches for i in range(batch.start, batch.start + batch.count)]

    @property
    def key(self) -> str:
        """A key that identifies this subset of these samples, labels included."""
        return self._key(self.samples.digest)

    @property
    def inputs_key(self) -> str:
        """A key that identifies the inputs of this subset."""
        return self._key(self.samples.inputs_digest)

    def _key(self, digest: str) -> str:
        return digest if is_whole(self) else f"{digest}:{','.join(map(str, self.indices))}"


def whole(samples: Samples) -> SampleSubset:
    """All samples."""
    return SampleSubset(samples, tuple(samples.batches()))


def finely(samples: Samples, executions: int) -> Samples:
    """`samples` in at least about this many executions, where the batch size is free."""
    if not samples.batch_is_free:
        return samples
    return samples.with_batch_size(min(samples.batch_size, max(1, samples.count // executions)))


def is_whole(subset: SampleSubset) -> bool:
    """Whether it holds all of its samples."""
    return len(subset.batches) == len(list(subset.samples.batches()))


def first(subset: SampleSubset, count: int | None) -> SampleSubset:
    """The first batches of `subset`, up to `count` samples, but at least one; None for all."""
    kept: list[Batch] = []
    for batch in subset.batches:
        if kept and count is not None and sum(b.count for b in (*kept, batch)) > count:
            break
        kept.append(batch)
    return SampleSubset(subset.samples, tuple(kept))


def spread(subset: SampleSubset, count: int) -> SampleSubset:
    """Executions of about `count` samples, at least one, spread evenly over `subset`."""
    batches = subset.batches
    wanted = max(1, min(len(batches), count * len(batches) // max(1, subset.count)))
    chosen = tuple(batches[k * len(batches) // wanted] for k in range(wanted))
    return SampleSubset(subset.samples, chosen)


def same_samples(one: Samples, other: Samples) -> bool:
    """Whether the inputs of one are those of the other, or begin with them, as far as a few tell
    that lie far apart."""
    both = [
        list(x.with_batch_size(1).batches() if x.batch_is_free else x.batches())
        for x in (one, other)
    ]
    least = min(map(len, both))
    for k in {i * (least - 1) // max(1, _LOOKED_AT - 1) for i in range(_LOOKED_AT)}:
        mine, its = both[0][k], both[1][k]
        if (mine.start, mine.count) != (its.start, its.count):
            return False
        feeds = (x.feeds(mine.start, mine.count) for x in (one, other))
        if not _equal(*feeds):
            return False
    return least > 0


def _equal(one: Feeds, other: Feeds) -> bool:
    return one.keys() == other.keys() and all(
        np.array_equal(array, other[name]) for name, array in one.items()
    )


def open_subsets(
    data: SampleSpec,
    held_out: SampleSpec | None,
    inputs: Sequence[TensorSpec],
    *,
    setting: str,
    share: float,
    executions: tuple[int, int] = (1, 1),
    parts: int = 1,
) -> tuple[SampleSubset, SampleSubset]:
    """The samples to work on, and those held out to evaluate the result.

    Args:
        held_out: data of their own to hold out; None holds out a `share` of `data`.
        setting: that `held_out` is given by.
        executions: at least about this many of `data` where it is split, and of `held_out`.
        parts: how many those held out are to be divided into.

    Raises:
        UsageError: `held_out` are the samples of `data`, or there are too few samples to hold
            any out.
        SampleError: data that cannot be read.
    """
    samples = data.open(inputs)
    if held_out is None:
        return split(finely(samples, executions[0]), share, (data.setting, setting), parts)
    others = held_out.open(inputs)
    begins = others  # as `samples` do, where those are the first of the same data
    if samples.count < others.count:
        # Feeds of several samples are not cut: then these are not the same ones.
        with suppress(SampleError):
            begins = replace(held_out, limit=samples.count, limited_by="samples").open(inputs)
    if begins.inputs_digest == samples.inputs_digest:
        raise UsageError(
            f"{option(setting)}: {held_out.data} holds the same samples as "
            f"{option(data.setting)}, so that they would check nothing",
            f"Give other samples, or leave it out: then a share of {option(data.setting)} is held "
            "out.",
            code="QD-USAGE-HOLDOUT-SAME",
        )
    return whole(samples), whole(finely(others, executions[1]))


def split(
    samples: Samples,
    share: float,
    settings: tuple[str, str] = ("inputs", "holdout"),
    parts: int = 1,
) -> tuple[SampleSubset, SampleSubset]:
    """Calibration and held-out samples, `share` of them held out, spread evenly over the data, and
    over each group of it, where there are groups; `settings` are those that the data, and others to
    hold out, are given by; `parts` is how many those held out are to be divided into.

    Raises:
        UsageError: there are too few samples to hold any out.
        SampleError: the data has no such groups.
    """
    calibration: list[Batch] = []
    held_out: list[Batch] = []
    batches = list(samples.batches())
    grouping = grouping_of(samples)
    if grouping is None:
        for number, batch in enumerate(batches):
            due = int((number + 1) * share) > int(number * share)
            (held_out if due else calibration).append(batch)
    else:
        shares = [*[share / parts] * parts, 1 - share]
        for batch, part in zip(batches, _by_group(batches, grouping, shares), strict=True):
            (held_out if part < parts else calibration).append(batch)
    if not held_out or not calibration:
        data, other = settings
        enough = max(2, math.ceil(1 / share), math.ceil(1 / (1 - share)))
        few, needed = counted(samples.count, "sample"), counted(enough, "sample")
        if len(batches) < samples.count:  # a batch is not divided
            few += f" in {len(batches)} batch{'es' if len(batches) > 1 else ''}"
            needed = f"{enough} batches"
        raise UsageError(
            f"{option(data)}: {few}: too few to hold some out ({option('holdout_share')} is "
            f"{share:g}), by which the result is checked",
            f"Give at least {needed}, or other samples as {option(other)}.",
            code="QD-USAGE-HOLDOUT",
        )
    return SampleSubset(samples, tuple(calibration)), SampleSubset(samples, tuple(held_out))


def halves(subset: SampleSubset, setting: str) -> tuple[SampleSubset, SampleSubset]:
    """Its executions, in turns, where there are groups those of each in turns. `setting` is the one
    that needs them.

    Raises:
        UsageError: it is a single one.
    """
    if len(subset.batches) < 2:
        held_out = counted(subset.count, "held-out sample")
        batch = ", in one batch," if subset.count > 1 else ""
        raise UsageError(
            f"{option(setting)}: too few samples: one half of those held out decides and the other "
            f"half checks, but {held_out}{batch} cannot be halved",
            f"Give more samples, or hold out more of them ({option('holdout_share')}).",
            code="QD-USAGE-HOLDOUT",
        )
    batches, grouping = subset.batches, grouping_of(subset.samples)
    part_of = [k % 2 for k in range(len(batches))]
    if grouping is not None:
        part_of = _by_group(batches, grouping, (0.5, 0.5))
    first, second = (
        tuple(batch for batch, own in zip(batches, part_of, strict=True) if own == part)
        for part in (0, 1)
    )
    return SampleSubset(subset.samples, first), SampleSubset(subset.samples, second)


def _by_group(batches: Sequence[Batch], grouping: Grouping, shares: Sequence[float]) -> list[int]:
    """Which of several parts each batch belongs to, so that each part has its share of every group:
    each batch, those of the rarest group first, goes where the largest part of what is due of that
    group is missing. So no part has two samples of a group where another could have one.

    Source: iterative stratification, Sechidis, Tsoumakas and Vlahavas, ECML PKDD 2011.
    """
    held = np.zeros((len(batches), len(grouping.groups)))
    for row, batch in zip(held, batches, strict=True):
        row += np.bincount(
            grouping.numbers[batch.start : batch.start + batch.count], minlength=len(row)
        )
    totals = held.sum(axis=0)
    missing = np.outer(shares, totals)
    part_of = [-1] * len(batches)
    for group in sorted(np.flatnonzero(totals), key=lambda group: totals[group]):
        for number in np.flatnonzero(held[:, group]):
            if part_of[number] < 0:
                part = int(np.argmax(missing[:, group] / shares))
                missing[part] -= held[number]
                part_of[number] = part
    return part_of
