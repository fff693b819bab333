"""The unit of work: one part of a job, idempotent, whose results can be merged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Generic, Protocol, TypeVar, cast

from qdebug import __version__
from qdebug.backends.options import DEFAULT_SESSIONS, SessionSettings
from qdebug.backends.segmentation import Segmentation
from qdebug.execute.cluster.files import SharedFile
from qdebug.network.graph import Graph
from qdebug.network.inline import Taken
from qdebug.network.load import read_model
from qdebug.network.prepare import Model, prepare_model, with_taken
from qdebug.network.samples import Batch, Samples, open_samples
from qdebug.network.samples.subset import SampleSubset
from qdebug.types import TensorSpec

PartT_contra = TypeVar("PartT_contra", contravariant=True)
MadeT = TypeVar("MadeT")
ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)
_FEWEST, _MOST, _EXECUTIONS = 16, 256, 8
"""Parts of a pass: at least so many, if there are as many executions, and at most; between these of
8 executions each, since what comes back of a part does not depend on how long it is. Their number
decides in which order sums are added, so it depends on the samples alone, not on who computes."""


class NotHere(Exception):  # noqa: N818 - the client sends the file, and all is well
    """A worker does not see a file. Raised wherever a job opens one, and ended by `worker.execute`,
    which asks for the file; no error of qdebug, so that nobody on the way makes a message of it."""

    def __init__(self, file: SharedFile) -> None:
        super().__init__(file.digest)
        self.file = file


class Last:
    """What was made last by each kind of description: the jobs of a command follow each other, and
    most are about one model."""

    def __init__(self) -> None:
        self._made: dict[type[object], tuple[object, object]] = {}

    def of(self, description: object, make: Callable[[], MadeT]) -> MadeT:
        """What `make` gives, or gave for an equal description just before."""
        known = self._made.get(type(description))
        if known is None or known[0] != description:
            self._made.pop(type(description), None)  # two at a time may be too large
            known = self._made[type(description)] = (description, make())
        return cast("MadeT", known[1])


@dataclass(frozen=True)
class Place:
    """The process in which a unit is executed.

    Attributes:
        inbox: the folder for files that the client sent.
        threads: how many executions may be in flight.
        last: what was made here last.
        sessions: what holds for the sessions of the unit.
    """

    inbox: Path
    threads: int
    last: Last = field(default_factory=Last)
    sessions: SessionSettings = DEFAULT_SESSIONS

    def path(self, file: SharedFile) -> str:
        """Where a file is on this machine.

        Raises:
            NotHere: nowhere.
        """
        found = file.find(self.inbox)
        if found is None:
            raise NotHere(file)
        return found


class Job(Protocol[PartT_contra, ResultT_co]):
    """What units have in common: they are parts of one job. A frozen dataclass that can be pickled:
    files, plans, settings. Each process opens it once."""

    def open(self, place: Place, stack: ExitStack) -> Callable[[PartT_contra], ResultT_co]:
        """Ready what all parts need, and say how one of them is executed; `stack` closes it."""


@dataclass(frozen=True)
class Unit(Generic[PartT_contra]):
    """One part of a job. Executing it twice, anywhere, gives the same.

    Attributes:
        job: the file that holds the job.
        part: a small frozen dataclass, or a tuple.
        version: of qdebug, which workers must have too.
        operators: libraries of custom operators that its sessions need.
        segments: in which models are opened; what comes out does not depend on it.
    """

    job: SharedFile
    part: PartT_contra
    version: str = __version__
    operators: tuple[SharedFile, ...] = ()
    segments: Segmentation = field(default_factory=Segmentation)


@dataclass(frozen=True)
class Shard:
    """The executions from number `start` to `stop` of those of a pass."""

    start: int
    stop: int


def shards(executions: int, fewest: int = _FEWEST, length: int = _EXECUTIONS) -> list[Shard]:
    """A pass over so many executions, in parts that are about equally long: at least `fewest`, and
    beyond that of `length` executions each."""
    return cut_evenly(executions, min(executions, max(fewest, min(_MOST, executions // length))))


def cut_evenly(executions: int, count: int) -> list[Shard]:
    """A pass over so many executions in `count` parts, whose lengths differ by one at most."""
    edges = [k * executions // count for k in range(count + 1)] if count else [0]
    return [Shard(*pair) for pair in pairwise(edges)]


@dataclass(frozen=True)
class SharedModel:
    """A model file, the opset that it is converted to, and what stands in the place of its If, Loop
    and Scan."""

    file: SharedFile
    opset: int
    taken: Taken = field(default_factory=dict)

    def prepared(self, place: Place) -> Model:
        """The model. Raises as `read_model` and `prepare_model` do, and NotHere."""
        return place.last.of(self, lambda: self.read(place))

    def read(self, place: Place) -> Model:
        """The model, anew. Raises as `prepared`."""
        model = prepare_model(read_model(place.path(self.file)), self.opset)
        return with_taken(model, self.taken)


@dataclass(frozen=True)
class MadeModel(SharedModel):
    """A model that the client made, in a file: it is ready as it is.

    Attributes:
        origins: see Model.
    """

    origins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def read(self, place: Place) -> Model:
        """The model, anew. Raises as `read_model` does, and NotHere."""
        file = read_model(place.path(self.file))
        return Model(file, Graph(file.proto), self.origins, quantized=False)


@dataclass(frozen=True)
class SharedSamples:
    """Samples in a file or folder of any kind that `open_samples` reads.

    Attributes:
        count, batch_size: how many of them, in executions of which size.
    """

    file: SharedFile
    count: int
    batch_size: int

    def opened(self, place: Place, inputs: Sequence[TensorSpec]) -> Samples:
        """The samples. Raises as `open_samples` does, and NotHere."""
        path = place.path(self.file)
        return open_samples(path, inputs, limit=self.count, batch_size=self.batch_size)


@dataclass(frozen=True)
class SharedSubset:
    """Some executions of samples; `indices` of None stands for all."""

    samples: SharedSamples
    indices: tuple[int, ...] | None = None

    def opened(self, place: Place, inputs: Sequence[TensorSpec]) -> SampleSubset:
        """The subset. Raises as `SharedSamples.opened` does."""
        samples = self.samples.opened(place, inputs)
        batches: tuple[Batch, ...] = tuple(samples.batches())
        if self.indices is not None:
            batches = tuple(batches[i] for i in self.indices)
        return SampleSubset(samples, batches)


def part_of(subset: SampleSubset, shard: Shard) -> SampleSubset:
    """The executions of a shard."""
    return SampleSubset(subset.samples, subset.batches[shard.start : shard.stop])
