"""The samples of a run, as the pipeline reads them, and what they are read from."""

from __future__ import annotations

import bisect
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np

from qdebug.errors import SampleError
from qdebug.network.samples.damage import reading
from qdebug.network.samples.matching import check_finite
from qdebug.network.samples.stamps import Stamps, check_stamps
from qdebug.network.samplespec import SampleSpec
from qdebug.types import Array, Feeds, TensorSpec
from qdebug.wording import option


class SampleArray(Protocol):
    """All samples of one name, stacked on axis 0, and read slice by slice."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The whole array's shape; axis 0 counts samples."""

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type as stored; any byte order."""

    def read(self, start: int, stop: int) -> Array:
        """Samples start to stop, in memory of their own; an array of rank 0 as a whole."""


class FeedSource(Protocol):
    """Feeds that are stored, or made, one at a time."""

    def read(self, index: int) -> Feeds | None:
        """Feed `index` by the file's own names, or None past the last one."""

    def where(self, index: int) -> str:
        """The name of feed `index` in a message."""


@dataclass(frozen=True)
class Origin:
    """What samples were before they became inputs; nothing of arrays, which are given as inputs.

    Attributes:
        told: what they were and what was done to them, for people.
        texts: of each sample, as people read it; none where they were no texts.
        rate: of recordings, in values per second; None where they were none.
        files: that each sample was read from, below the folder that was given; none where samples
            are no files.
        stamps: of the files that they are read from, when these were opened.
        numbered_folders: in which they are, where their labels are the numbers that these are named
            by, whether or not a network has such classes; else 0.
    """

    told: str = ""
    texts: Sequence[str] = ()
    rate: int | None = None
    files: Sequence[str] = ()
    stamps: Stamps = field(default_factory=dict)
    numbered_folders: int = 0


@dataclass(frozen=True)
class PreparedSamples:
    """What samples became for a network.

    Attributes:
        arrays: of its inputs and of labels, by name, samples on the leading axis; or feeds.
        spec: that they were opened from, with what was found.
        origin: what they were.
    """

    arrays: Mapping[str, SampleArray] | FeedSource
    spec: SampleSpec
    origin: Origin


@runtime_checkable
class RawSamples(Protocol):
    """Samples that are no arrays yet, such as pictures."""

    def prepared(self, spec: SampleSpec, inputs: Sequence[TensorSpec]) -> PreparedSamples:
        """The arrays for a network of these inputs.

        Raises:
            SampleError: they cannot be read, or are not what the network takes.
        """
        ...


Source = Mapping[str, SampleArray] | FeedSource | RawSamples
"""What one file format gives: stacked arrays by name, feeds one by one, or what is yet to become
one of these."""


@dataclass(frozen=True)
class Batch:
    """`count` samples from `start`: one execution of the model."""

    index: int
    start: int
    count: int


@dataclass(frozen=True)
class Layout:
    """How samples become executions.

    `offsets` is None when samples lie on the inputs' leading axis and every execution takes
    `batch_size` of them (the last one may take fewer when `batch_is_free`). Otherwise the user's
    feeds are executed as given: execution i takes samples offsets[i] to offsets[i + 1].
    """

    count: int
    batch_size: int
    batch_is_free: bool
    offsets: Sequence[int] | None = None


class Reader(Protocol):
    """Reads samples as model inputs; safe to call from several threads."""

    def read(self, start: int, count: int) -> dict[str, Array]:
        """`count` samples from `start`, by model input name, of the types the model takes."""


class Extras(Mapping[str, Array]):
    """Arrays that are not model inputs, such as labels: `count` rows each, read when they are
    wanted. They are not kept: they may be larger than the memory."""

    def __init__(
        self, arrays: Mapping[str, SampleArray], count: int, stamps: Stamps | None = None
    ) -> None:
        self._arrays = arrays
        self._count = count
        self._stamps = stamps or {}

    def __getitem__(self, name: str) -> Array:
        return self._read(name, 0, self._count)

    def _read(self, name: str, start: int, stop: int) -> Array:
        with _pass_of(self._stamps, ends=stop >= self._count):
            return self._arrays[name].read(start, stop)

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def rows(self, start: int, count: int) -> dict[str, Array]:
        """Rows of each, of which alone is read; what is no array of samples is as it is."""
        stop = min(start + count, self._count)
        return {name: self._read(name, start, stop) for name in self._arrays}

    def first(self, count: int) -> Extras:
        """The first `count` rows of each."""
        return Extras(self._arrays, min(count, self._count), self._stamps)

    def read_from(self, stamps: Stamps) -> Extras:
        """The same, of files that had these stamps when they were opened."""
        return Extras(self._arrays, self._count, stamps)

    def add_to(self, digest: hashlib._Hash, name: str) -> None:
        """Add the type, the shape and the bytes of an array to a digest, a few rows at a time."""
        array = self._arrays[name]
        if array.dtype.kind == "U":  # how wide it is shows when all of it is read
            whole = self[name]
            digest.update(f"{whole.dtype}{whole.shape}".encode() + whole.tobytes())
            return
        shape = (self._count, *array.shape[1:])
        digest.update(f"{array.dtype}{shape}".encode())
        row_bytes = max(1, math.prod(shape[1:]) * array.dtype.itemsize)
        rows = max(1, _DIGEST_BYTES // row_bytes)
        for start in range(0, self._count, rows):
            digest.update(self._read(name, start, min(start + rows, self._count)).tobytes())


_DIGEST_BYTES = 1 << 24


@contextmanager
def _pass_of(stamps: Stamps, *, ends: bool) -> Iterator[None]:
    """Guard one read of files: they are looked at where it fails, and where it `ends` a pass.

    Raises:
        SampleError: one was changed, which also explains whatever else went wrong in the block.
    """
    try:
        yield
    except Exception:
        check_stamps(stamps)
        raise
    if ends:
        check_stamps(stamps)


class Samples:
    """Samples of a model's inputs, read when asked for; memory holds one batch.

    Any number of passes, from several threads; reading in order is fastest.

    Attributes:
        count: number of samples.
        spec: what they were opened from.
        batch_size: samples per execution; the largest one when the user's feeds differ.
        batch_is_free: any batch size works, and the last batch may be smaller.
        extras: arrays that are not model inputs (labels), `count` rows each.
        origin: what they were before they became inputs.
    """

    def __init__(
        self,
        reader: Reader,
        layout: Layout,
        extras: Extras,
        inputs: Sequence[TensorSpec],
        spec: SampleSpec,
        origin: Origin = Origin(),
    ) -> None:
        self.extras = extras
        self.count = layout.count
        self.batch_size = layout.batch_size
        self.batch_is_free = layout.batch_is_free
        self._reader = reader
        self._layout = layout
        self._inputs = tuple(inputs)
        self.spec = spec
        self.origin = origin

    def feeds(self, start: int, count: int) -> Feeds:
        """`count` samples from `start`, by input name, in the model's types; fresh arrays.

        Shapes are the model's, with `count` as leading axis when samples lie on it. Unless
        `batch_is_free`, start and count must be those of one of `batches()`.

        Raises:
            SampleError: NaN or Inf in the samples, damaged data, or a failing script.
            ValueError: start and count lie outside the samples, or are not a batch.
        """
        self._check_range(start, count)
        with (
            reading(self.where, "Leave the data in place."),
            _pass_of(self.origin.stamps, ends=start + count == self.count),
        ):
            feeds = self._reader.read(start, count)
        for spec in self._inputs:
            check_finite(feeds[spec.name], spec, (start, count), self.where)
        return feeds

    def batches(self) -> Iterator[Batch]:
        """The executions of one pass, in order. Nothing is read."""
        offsets = self._layout.offsets or [*range(0, self.count, self.batch_size), self.count]
        for index, start in enumerate(offsets[:-1]):
            yield Batch(index, start, offsets[index + 1] - start)

    @property
    def where(self) -> str:
        """What they are called in messages."""
        return self.spec.data

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs of the model that they are for."""
        return self._inputs

    @property
    def is_stacked(self) -> bool:
        """Whether they lie on the inputs' leading axis, and are not feeds to execute as given."""
        return self._layout.offsets is None

    @property
    def left_over(self) -> int:
        """How many samples do not fill a batch of a size that must be filled."""
        if self.batch_is_free or self._layout.offsets is not None:
            return 0
        return self.count % self.batch_size

    def first(self, count: int | None) -> Samples:
        """The first `count` samples, or all where there are fewer; None for all.

        Raises:
            SampleError: that would cut a feed which is executed as it was given.
        """
        if count is None or count >= self.count:
            return self
        offsets = self._layout.offsets
        if offsets is not None:
            kept = [offset for offset in offsets if offset <= count]
            if kept[-1] != count:
                raise SampleError(
                    f"{self.where}: {option('samples', str(count))} ends among samples "
                    "that are executed together.",
                    f"Use {kept[-1] or offsets[1]}.",
                    code="QD-SAMPLES-COUNT",
                )
            offsets = kept
        layout = replace(self._layout, count=count, offsets=offsets)
        spec = replace(self.spec, limit=count)
        extras = self.extras.first(count)
        return Samples(self._reader, layout, extras, self._inputs, spec, self.origin)

    def check_inputs(self, inputs: Sequence[TensorSpec]) -> None:
        """Make sure that these samples were opened for such inputs.

        Raises:
            SampleError: they were opened for a model with other ones.
        """
        if self._inputs != tuple(inputs):
            raise SampleError(
                f"{self.where}: these samples were opened for a model with other inputs.",
                "Open them for this model, or give the data that they were opened from.",
                code="QD-SAMPLES-OTHER-MODEL",
            )

    def with_batch_size(self, size: int) -> Samples:
        """The same samples in batches of `size`.

        Raises:
            SampleError: the model or the data allows no other batch size.
        """
        if size < 1:
            raise SampleError(
                f"{option('batch_size')} is {size}; it must be at least 1.", code="QD-SAMPLES-BATCH"
            )
        if not self.batch_is_free and size != self.batch_size:
            raise SampleError(
                f"{self.where}: {option('batch_size', str(size))} cannot be used: the samples fit "
                f"the model in batches of {self.batch_size} only.",
                f"Leave it out, or use {option('batch_size', str(self.batch_size))}; for another "
                "one, export the model with a dynamic batch axis and stack the samples in an .npz.",
                code="QD-SAMPLES-BATCH",
            )
        layout = replace(self._layout, batch_size=size)
        spec = replace(self.spec, batch_size=size)
        return Samples(self._reader, layout, self.extras, self._inputs, spec, self.origin)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over `inputs_digest` and `labels_digest`; the first alone without labels."""
        if not self.extras:
            return self.inputs_digest
        return hashlib.sha256(f"{self.inputs_digest}{self.labels_digest}".encode()).hexdigest()

    @cached_property
    def labels_digest(self) -> str:
        """SHA-256 over names, shapes, types and bytes of the extras."""
        found = hashlib.sha256()
        for name in sorted(self.extras):
            found.update(repr(name).encode())
            self.extras.add_to(found, name)
        return found.hexdigest()

    @property
    def inputs_digest(self) -> str:
        """SHA-256 over names, shapes, types and bytes of the inputs; takes one pass.

        The same samples have the same digest in every file format and at every batch size.
        Feeds that are executed as given count with their boundaries.
        """
        return self._surveyed[0]

    @property
    def inputs_amax(self) -> Mapping[str, float]:
        """The largest magnitude of each input; takes the pass of `inputs_digest`, once for both."""
        return self._surveyed[1]

    @cached_property
    def _surveyed(self) -> tuple[str, Mapping[str, float]]:
        hashes = {spec.name: hashlib.sha256() for spec in self._inputs}
        shapes: dict[str, tuple[int, ...]] = {}
        amax = dict.fromkeys(hashes, 0.0)
        for batch in self.batches():
            for name, array in self.feeds(batch.start, batch.count).items():
                shape = self._digest_shape(array)
                if shapes.get(name) != shape:
                    hashes[name].update(f"{array.dtype}{shape}".encode())
                    shapes[name] = shape
                hashes[name].update(array.tobytes())
                if array.dtype.kind == "f":
                    ends = array.min(initial=0), array.max(initial=0)
                    amax[name] = max(amax[name], *(abs(float(end)) for end in ends))
        parts = [f"{name!r}: {hashes[name].hexdigest()}" for name in sorted(hashes)]
        digest = hashlib.sha256("\n".join([str(self.count), *parts]).encode()).hexdigest()
        return digest, amax

    def _digest_shape(self, array: Array) -> tuple[int, ...]:
        return array.shape if self._layout.offsets else (0, *array.shape[1:])

    def _check_range(self, start: int, count: int) -> None:
        if start < 0 or count < 1 or start + count > self.count:
            raise ValueError(f"samples {start} to {start + count} of {self.count}")
        if self.batch_is_free:
            return
        offsets = self._layout.offsets
        if offsets is None:
            is_batch = start % self.batch_size == 0 and count == self.batch_size
        else:
            index = bisect.bisect_left(offsets, start)
            is_batch = offsets[index] == start and offsets[index + 1] == start + count
        if not is_batch:
            raise ValueError(f"{count} samples from {start} are not one of the batches")
