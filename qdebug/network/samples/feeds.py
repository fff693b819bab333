"""Samples that come feed by feed: one file, test data set, JSON object or dict each.

A first pass reads every feed once, checks it, counts samples and gathers the extras. A feed's
samples are the rows of its inputs' common leading axis; a feed without one is a single sample, and
so is one whose rows no output keeps (see `sampleaxis`).
A model with a fixed batch gets the rows in batches of that size. Otherwise feeds of one sample
are stacked freely, and larger ones are executed exactly as they were given, because a dynamic
leading axis need not be a batch axis.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from qdebug.errors import SampleError
from qdebug.network.samples.arrays import ArrayInMemory
from qdebug.network.samples.matching import (
    as_input,
    axes_fit,
    check_dtype,
    match_names,
    refuse_shape,
)
from qdebug.network.samples.samples import Extras, FeedSource, Layout, SampleArray
from qdebug.network.samples.stacked import fixed_batch
from qdebug.types import Array, Feeds, TensorSpec
from qdebug.wording import counted, option

_CACHED_FEEDS = 2


@dataclass(frozen=True)
class _Fitted:
    """A feed by input name, leading axes given, and the number of its samples."""

    feed: Feeds
    extras: Feeds
    count: int


class FeedReader:
    """Reads samples out of feeds; the last feeds are kept, as batches may share one.

    `offsets[i]` is the first sample of feed i; `batched` says whether samples are rows.
    """

    def __init__(
        self, source: FeedSource, inputs: Sequence[TensorSpec], offsets: list[int], batched: bool
    ) -> None:
        self._source, self._inputs, self._offsets = source, inputs, offsets
        self._batched = batched
        self._cache: dict[int, Feeds] = {}
        self._lock = threading.Lock()

    def read(self, start: int, count: int) -> dict[str, Array]:
        """`count` samples from `start`, which lie in one feed or in several."""
        parts: list[Feeds] = []
        index = bisect.bisect_right(self._offsets, start) - 1
        with self._lock:
            while self._offsets[index] < start + count:
                feed, first = self._feed(index), self._offsets[index]
                rows = slice(max(start - first, 0), start + count - first)
                parts.append({n: a[rows] for n, a in feed.items()} if self._batched else feed)
                index += 1
        joined = {
            spec.name: np.concatenate([part[spec.name] for part in parts])
            if len(parts) > 1
            else parts[0][spec.name].copy()  # the feed itself stays in the cache
            for spec in self._inputs
        }
        return {spec.name: as_input(joined[spec.name], spec) for spec in self._inputs}

    def _feed(self, index: int) -> Feeds:
        if index in self._cache:
            return self._cache[index]
        where, raw = self._source.where(index), self._source.read(index)
        fitted = None if raw is None else _fit(raw, self._inputs, where, self._batched)
        expected = self._offsets[index + 1] - self._offsets[index]
        if fitted is None or fitted.count != expected:
            got = f"{fitted.count} samples" if fitted else "nothing"
            raise SampleError(
                f"{where}: gave {got}; on the first pass {expected}.",
                "The data must be the same on every pass: fix the order and the seed.",
                code="QD-SAMPLES-CHANGED",
            )
        last = list(self._cache.items())[1 - _CACHED_FEEDS :]
        self._cache = {**dict(last), index: fitted.feed}
        return fitted.feed


@dataclass
class _Survey:
    """What the first pass learns. `batched`: samples are the rows of the feeds."""

    batched: bool
    counts: list[int] = field(default_factory=list)
    extras: dict[str, list[Array]] = field(default_factory=dict)
    shapes: set[tuple[tuple[int, ...], ...]] = field(default_factory=set)

    @property
    def offsets(self) -> list[int]:
        """The first sample of each feed, and the end."""
        found: list[int] = np.cumsum([0, *self.counts]).tolist()
        return found

    def add(self, fitted: _Fitted, where: str) -> None:
        """Add a feed.

        Raises:
            SampleError: it has an extra that the feeds before do not have, or the other way round,
                or one that does not have a row for each of its samples.
        """
        different = sorted(set(fitted.extras) ^ set(self.extras)) if self.counts else []
        if different:
            raise SampleError(
                f"{where}: array '{different[0]}' is there for some samples and not for others.",
                "Give it for all samples, or for none.",
                code="QD-SAMPLES-LABELS",
            )
        for name, array in fitted.extras.items():
            own = np.array(array)
            if own.shape[:1] != (fitted.count,):
                if fitted.count > 1:
                    rows = counted(own.shape[0], "row") if own.ndim else "no rows"
                    raise SampleError(
                        f"{where}: array '{name}' has {rows}, the inputs have {fitted.count} "
                        "samples.",
                        "An array that is not a model input is taken for labels, one row per "
                        "sample.",
                        code="QD-SAMPLES-LABELS",
                    )
                own = own[np.newaxis]
            self.extras.setdefault(name, []).append(own)
        self.counts.append(fitted.count)
        self.shapes.add(tuple(array.shape[1:] for array in fitted.feed.values()))

    def joined_extras(self, where: str) -> dict[str, SampleArray]:
        """The extras of all samples, one row each.

        Raises:
            SampleError: they differ in shape or type.
        """
        found: dict[str, SampleArray] = {}
        for name, rows in self.extras.items():
            try:
                found[name] = ArrayInMemory(np.concatenate(rows))
            except (ValueError, TypeError) as error:
                raise SampleError(
                    f"{where}: array '{name}' differs in shape or type between samples ({error}).",
                    "Give labels of one shape.",
                    code="QD-SAMPLES-LABELS",
                ) from error
        return found


def open_feeds(
    source: FeedSource, inputs: Sequence[TensorSpec], where: str, limit: int | None
) -> tuple[FeedReader, Layout, Extras]:
    """The reader, the layout and the extras of a list of feeds; reads every feed once.

    Raises:
        SampleError: no feeds; a feed that does not fit the model; `limit` cuts a feed that
            cannot be cut; extras that are not there for every sample.
    """
    survey = None
    if all(spec.holds_samples for spec in inputs):
        survey = _survey(source, inputs, limit, batched=True)
    if survey is None:
        survey = _survey(source, inputs, limit, batched=False)
    if survey is None or not survey.counts:
        raise SampleError(
            f"{where}: holds no samples.",
            "Give at least one dict of arrays.",
            code="QD-SAMPLES-EMPTY",
        )
    total = survey.offsets[-1]
    count = total if limit is None else min(limit, total)
    layout = _layout(survey, inputs, count, where)
    reader = FeedReader(source, inputs, survey.offsets, survey.batched)
    return reader, layout, Extras(survey.joined_extras(where), count)


def _survey(
    source: FeedSource, inputs: Sequence[TensorSpec], limit: int | None, batched: bool
) -> _Survey | None:
    """Reads feeds until there are no more, or `limit` samples; None when `batched` is wrong."""
    survey, total = _Survey(batched), 0
    while limit is None or total < limit:
        index = len(survey.counts)
        raw = source.read(index)
        if raw is None:
            break
        fitted = _fit(raw, inputs, source.where(index), batched)
        if fitted is None:
            return None
        survey.add(fitted, source.where(index))
        total += fitted.count
    return survey


def _fit(raw: Feeds, inputs: Sequence[TensorSpec], where: str, batched: bool) -> _Fitted | None:
    """The feed as the model takes it; None when its inputs have no common leading axis.

    Without `batched` the feed is one sample, and must have the model's shapes as it is.

    Raises:
        SampleError: it does not fit the model.
    """
    names = match_names(raw, inputs, where)
    feed = {}
    for spec in inputs:
        array = raw[names[spec.name]]
        check_dtype(array.dtype, spec, where)
        shape, axes = array.shape, spec.shape
        if axes and array.ndim == len(axes) - 1:
            array = array[np.newaxis]
        if array.ndim != len(axes) or not axes_fit(array.shape[batched:], axes[batched:]):
            refuse_shape(shape, spec, where)
        feed[spec.name] = array
    extras = {name: raw[name] for name in raw if name not in names.values()}
    if not batched:
        return _Fitted(feed, extras, 1)
    lengths = {array.shape[:1] for array in feed.values()}
    if len(lengths) > 1 or () in lengths or len(fixed_batch(inputs)) > 1:
        return None
    count = len(next(iter(feed.values())))
    if count == 0:
        raise SampleError(
            f"{where}: input '{inputs[0].name}' has no samples.",
            "Leave this dict of arrays out.",
            code="QD-SAMPLES-EMPTY",
        )
    return _Fitted(feed, extras, count)


def _layout(survey: _Survey, inputs: Sequence[TensorSpec], count: int, where: str) -> Layout:
    if not survey.batched:
        return Layout(count, 1, batch_is_free=False, offsets=range(count + 1))
    uniform = len(survey.shapes) == 1
    for fixed in fixed_batch(inputs):
        if not uniform and any(own % fixed for own in survey.counts):
            raise SampleError(
                f"{where}: the model takes batches of {fixed}, and samples of different shapes "
                "cannot share one.",
                f"Give {fixed} samples of one shape at a time, stacked into one array.",
                code="QD-SAMPLES-SHAPE",
            )
        return Layout(count, fixed, batch_is_free=False)
    if uniform and set(survey.counts) == {1}:
        return Layout(count, 1, batch_is_free=True)
    offsets = survey.offsets
    if offsets[-1] != count:
        raise SampleError(
            f"{where}: {option('samples', str(count))} ends inside of item "
            f"{len(survey.counts) - 1}, which holds {survey.counts[-1]} samples that are executed "
            "together.",
            "Use " + " or ".join(option("samples", str(n)) for n in offsets[-2:] if n) + ".",
            code="QD-SAMPLES-COUNT",
        )
    return Layout(count, max(survey.counts), batch_is_free=False, offsets=offsets)
