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
from dataclasses import dataclass

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
        self._source = source
        self._inputs = inputs
        self._offsets = offsets
        self._batched = batched
        self._cache: dict[int, Feeds] = {}
        self._lock = threading.Lock()

    def read(self, start: int, count: int) -> dict[str, Array]:
        """`count` samples from `start`, which lie in one feed or in several."""
        with self._lock:
            parts = self._parts(start, start + count)
        return {spec.name: as_input(_join(parts, spec.name), spec) for spec in self._inputs}

    def _parts(self, start: int, stop: int) -> list[Feeds]:
        parts: list[Feeds] = []
        index = bisect.bisect_right(self._offsets, start) - 1
        while self._offsets[index] < stop:
            feed, first = self._feed(index), self._offsets[index]
            if self._batched:
                rows = slice(max(start - first, 0), stop - first)
                feed = {name: array[rows] for name, array in feed.items()}
            parts.append(feed)
            index += 1
        return parts

    def _feed(self, index: int) -> Feeds:
        if index not in self._cache:
            for old in list(self._cache)[: len(self._cache) - _CACHED_FEEDS + 1]:
                del self._cache[old]
            self._cache[index] = self._read_again(index)
        return self._cache[index]

    def _read_again(self, index: int) -> Feeds:
        where = self._source.where(index)
        raw = self._source.read(index)
        fitted = None if raw is None else _fit(raw, self._inputs, where, self._batched)
        expected = self._offsets[index + 1] - self._offsets[index]
        if fitted is None or fitted.count != expected:
            got = f"{fitted.count} samples" if fitted else "nothing"
            raise SampleError(
                f"{where}: gave {got}; on the first pass {expected}.",
                "The data must be the same on every pass: fix the order and the seed.",
                code="QD-SAMPLES-CHANGED",
            )
        return fitted.feed


def _join(parts: list[Feeds], name: str) -> Array:
    if len(parts) == 1:  # a copy, as the feed itself stays in the cache
        return parts[0][name].copy()
    return np.concatenate([part[name] for part in parts])


class _Survey:
    """What the first pass learns. `batched`: samples are the rows of the feeds."""

    def __init__(self, batched: bool) -> None:
        self.batched = batched
        self.counts: list[int] = []
        self.total = 0
        self.uniform = True
        self.extras = GatheredExtras()
        self._trailing: dict[str, tuple[int, ...]] | None = None

    def add(self, fitted: _Fitted, where: str) -> None:
        self.counts.append(fitted.count)
        self.total += fitted.count
        self.extras.add(fitted.extras, fitted.count, where)
        trailing = {name: array.shape[1:] for name, array in fitted.feed.items()}
        self._trailing = self._trailing or trailing
        self.uniform = self.uniform and trailing == self._trailing


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
    if survey is None or not survey.total:
        raise SampleError(
            f"{where}: holds no samples.",
            "Give at least one dict of arrays.",
            code="QD-SAMPLES-EMPTY",
        )
    count = survey.total if limit is None else min(limit, survey.total)
    layout = _layout(survey, inputs, count, where)
    offsets = np.cumsum([0, *survey.counts]).tolist()
    reader = FeedReader(source, inputs, offsets, survey.batched)
    return reader, layout, Extras(survey.extras.joined(where), count)


def _survey(
    source: FeedSource, inputs: Sequence[TensorSpec], limit: int | None, batched: bool
) -> _Survey | None:
    """Reads feeds until there are no more, or `limit` samples; None when `batched` is wrong."""
    survey = _Survey(batched)
    while limit is None or survey.total < limit:
        index = len(survey.counts)
        raw = source.read(index)
        if raw is None:
            break
        fitted = _fit(raw, inputs, source.where(index), batched)
        if fitted is None:
            return None
        survey.add(fitted, source.where(index))
    return survey


def _fit(raw: Feeds, inputs: Sequence[TensorSpec], where: str, batched: bool) -> _Fitted | None:
    """The feed as the model takes it; None when its inputs have no common leading axis.

    Without `batched` the feed is one sample, and must have the model's shapes as it is.

    Raises:
        SampleError: it does not fit the model.
    """
    names = match_names(raw, inputs, where)
    feed = {spec.name: _fit_input(raw[names[spec.name]], spec, where) for spec in inputs}
    extras = {name: raw[name] for name in raw if name not in names.values()}
    if not batched:
        for spec in inputs:
            if not axes_fit(feed[spec.name].shape, spec.shape):
                refuse_shape(feed[spec.name].shape, spec, where)
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


def _fit_input(array: Array, spec: TensorSpec, where: str) -> Array:
    check_dtype(array.dtype, spec, where)
    shape = array.shape
    if spec.shape and array.ndim == len(spec.shape) - 1:
        array = array[np.newaxis]
    if array.ndim != len(spec.shape) or not axes_fit(array.shape[1:], spec.shape[1:]):
        refuse_shape(shape, spec, where)
    return array


def _layout(survey: _Survey, inputs: Sequence[TensorSpec], count: int, where: str) -> Layout:
    if not survey.batched:
        return Layout(count, 1, batch_is_free=False, offsets=range(count + 1))
    fixed = next(iter(fixed_batch(inputs)), None)
    if fixed is not None:
        _check_shareable(survey, fixed, where)
        return Layout(count, fixed, batch_is_free=False)
    if survey.uniform and set(survey.counts) == {1}:
        return Layout(count, 1, batch_is_free=True)
    offsets = np.cumsum([0, *survey.counts]).tolist()
    if offsets[-1] != count:
        raise SampleError(
            f"{where}: {option('samples', str(count))} ends inside of item "
            f"{len(survey.counts) - 1}, which holds {survey.counts[-1]} samples that are executed "
            "together.",
            "Use " + " or ".join(option("samples", str(n)) for n in offsets[-2:] if n) + ".",
            code="QD-SAMPLES-COUNT",
        )
    return Layout(count, max(survey.counts), batch_is_free=False, offsets=offsets)


def _check_shareable(survey: _Survey, batch_size: int, where: str) -> None:
    if not survey.uniform and any(count % batch_size for count in survey.counts):
        raise SampleError(
            f"{where}: the model takes batches of {batch_size}, and samples of different shapes "
            "cannot share one.",
            f"Give {batch_size} samples of one shape at a time, stacked into one array.",
            code="QD-SAMPLES-SHAPE",
        )


class GatheredExtras:
    """Collects labels feed by feed; kept in memory."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Array]] = {}
        self._feeds = 0

    def add(self, extras: Feeds, count: int, where: str) -> None:
        """Adds the extras of a feed of `count` samples.

        Raises:
            SampleError: an extra that the feeds before do not have, or the other way round, or
                that does not have `count` rows.
        """
        different = sorted(set(extras) ^ set(self._rows)) if self._feeds else []
        if different:
            raise SampleError(
                f"{where}: array '{different[0]}' is there for some samples and not for others.",
                "Give it for all samples, or for none.",
                code="QD-SAMPLES-LABELS",
            )
        for name, array in extras.items():
            self._rows.setdefault(name, []).append(_rows(name, array, count, where))
        self._feeds += 1

    def joined(self, where: str) -> dict[str, SampleArray]:
        """The extras of all samples, one row each."""
        return {n: ArrayInMemory(_join_rows(n, rows, where)) for n, rows in self._rows.items()}


def _rows(name: str, array: Array, count: int, where: str) -> Array:
    if array.shape[:1] == (count,):
        return np.array(array)
    if count == 1:
        return np.array(array)[np.newaxis]
    rows = counted(array.shape[0], "row") if array.ndim else "no rows"
    raise SampleError(
        f"{where}: array '{name}' has {rows}, the inputs have {count} samples.",
        "An array that is not a model input is taken for labels, one row per sample.",
        code="QD-SAMPLES-LABELS",
    )


def _join_rows(name: str, rows: list[Array], where: str) -> Array:
    try:
        return np.concatenate(rows)
    except (ValueError, TypeError) as error:
        raise SampleError(
            f"{where}: array '{name}' differs in shape or type between samples ({error}).",
            "Give labels of one shape.",
            code="QD-SAMPLES-LABELS",
        ) from error
