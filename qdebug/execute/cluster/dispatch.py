"""The client of a cluster: units go out as dask futures, results come back in order.

dask.distributed does the distribution: it starts processes, gives units to those that are idle,
notices those that die and gives their units to others. What it does not do is here: a unit that
takes too long is given to another worker, files that a worker does not see are sent to it once, and
results are yielded in the order of the parts, so that sums do not depend on who was first.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar
from uuid import uuid4

from qdebug.backends.options import SessionSettings
from qdebug.errors import ClusterError, ClusterStartError, QdebugError
from qdebug.execute.cluster import worker
from qdebug.execute.cluster.files import SharedFile, shared_file
from qdebug.execute.cluster.sharing import model_file, sample_file
from qdebug.execute.cluster.unit import (
    Job,
    MadeModel,
    Shard,
    SharedModel,
    SharedSamples,
    SharedSubset,
    Unit,
    shards,
)
from qdebug.inmemory import InMemory
from qdebug.network.prepare import Model
from qdebug.network.samples import Samples
from qdebug.network.samples.subset import SampleSubset, is_whole
from qdebug.network.weights import write_temporary
from qdebug.outputfiles import kept_in
from qdebug.types import Progress, ProgressCallback
from qdebug.wording import counted, option

if TYPE_CHECKING:
    from distributed import Client, Future

    from qdebug.execute.cluster.queues import JobQueue

PartT = TypeVar("PartT")
ResultT = TypeVar("ResultT")
SharedT = TypeVar("SharedT")

_CHUNK_BYTES = 8 << 20
_LOOK_EVERY_S = 0.5
_ATTEMPTS = 3
"""How often a unit may exceed its time, or get lost."""
_RESTART_S = 10.0
_NO_WORKER_S = 60.0
"""How long there may be no worker at all, however short a unit is: those that hang take a while to
be started anew."""
_LONG = 32
"""Executions in a part of a pass whose results are large."""
_AHEAD = 4
"""Parts that are given away before the first of them has been taken, for each worker: as many keep
all busy, and their results bound the memory."""


@dataclass
class _Running:
    """A unit that was given away.

    Attributes:
        attempt: how often before.
        since: when it was first seen on a worker, or there with fewer of others than before.
        others: how many units of others were seen there.
        helped: the workers that lacked a file for it, with the file's digest; they have it since.
        home: the only worker that may take it; "" for any.
        preferred: the workers that should, though others may; all may where it is empty.
        patience_s: how long its result is waited for at a time: no other worker finds it once more
            for a home that goes before it has come.
    """

    index: int
    attempt: int = 0
    since: float | None = None
    others: int = 0
    helped: frozenset[tuple[str, str]] = frozenset()
    home: str = ""
    preferred: frozenset[str] = frozenset()
    patience_s: float = 5.0


@dataclass
class Cluster:
    """Workers, and what was shared with them.

    Attributes:
        client: dask's.
        folder: for files that the client makes for workers.
        limit_s: how long a unit may take, before another worker gets it.
        sessions: what holds for the sessions of the workers.
        queue: that starts the workers.
        here: the workers are processes of this machine, which share its cores with the command.
    """

    client: Client
    folder: Path
    limit_s: float
    sessions: SessionSettings
    queue: JobQueue | None = None
    here: bool = False
    _shared: dict[int, tuple[object, object]] = field(default_factory=dict)
    _samples: dict[tuple[object, int], tuple[str, SharedFile]] = field(default_factory=dict)
    _sent: Counter[tuple[str, str]] = field(default_factory=Counter)
    _homes: dict[tuple[int, int], str] = field(default_factory=dict)
    _last_result: dict[str, float] = field(default_factory=dict)
    _seen: float = field(default_factory=time.monotonic)

    @property
    def workers(self) -> int:
        """How many there are now, at least 1: others may join."""
        return max(1, len(self.addresses()))

    def addresses(self) -> list[str]:
        """Those of the workers that there are now, and work. Raises as `_known`."""
        return [at for at, worker in self._known().items() if worker["status"] == "running"]

    def _known(self) -> dict[str, Any]:
        """What the scheduler says of its workers, by address.

        Raises:
            ClusterError: the scheduler is gone.
        """
        ended = self.client.status == "closed"  # dask gave up to connect once more
        known = {} if ended else self.client.scheduler_info(n_workers=-1)
        if "workers" not in known:
            raise ClusterError(
                "the scheduler does not answer any more",
                "See whether it still runs, then start the command again.",
                code="QD-CLUSTER-LOST",
            )
        return dict(known["workers"])

    def model(self, spec: str, opset: int, model: Model) -> SharedModel:
        """A model of the user's, as workers open it; from now on its graph is known.

        Args:
            spec: its path, or the model in memory.
            opset: at least which it was converted to.
        """
        shared = SharedModel(model_file(spec, self.folder), opset, model.taken)
        self.remember(model.graph, shared)
        return shared

    def made(self, model: Model) -> None:
        """An FP32 model that the command made itself: from now on its graph is known.

        Raises:
            StoreError: it cannot be written.
        """
        if self.knows(model.graph):
            return
        folder = self.folder / f"made-{len(self._shared)}"
        folder.mkdir()
        path, *others = write_temporary(model.graph.proto, folder / "model.onnx")
        file = shared_file(path, [other.name for other in others])
        self.remember(model.graph, MadeModel(file, 0, origins=model.origins))

    def remember(self, what: object, shared: object) -> None:
        """How workers make `what`: a graph by a SharedModel, a pair by a PairRecipe."""
        self._shared[id(what)] = what, shared

    def knows(self, what: object) -> bool:
        """Whether workers can make it."""
        return id(what) in self._shared

    def shared(self, what: object, kind: type[SharedT]) -> SharedT:
        """How workers make it."""
        found = self._shared[id(what)][1]
        assert isinstance(found, kind)
        return found

    def samples(self, samples: Samples) -> SharedSamples:
        """Samples, as workers open them: where they are not in a file, they are written to one."""
        where = samples.where
        key = (id(where) if isinstance(where, InMemory) else str(where), samples.count)
        if key not in self._samples:
            name = f"samples-{len(self._samples)}"
            self._samples[key] = where, sample_file(samples, self.folder / name)
        return SharedSamples(self._samples[key][1], samples.count, samples.batch_size)

    def subset(self, subset: SampleSubset) -> SharedSubset:
        """A subset, as workers open it."""
        indices = None if is_whole(subset) else tuple(b.index for b in subset.batches)
        return SharedSubset(self.samples(subset.samples), indices)

    def over_shards(
        self,
        job: Job[Any, ResultT],
        subset: SampleSubset,
        progress: ProgressCallback,
        stage: str,
        given: Callable[[Shard], Any] = lambda shard: shard,
        *,
        in_any_parts: bool = False,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Iterator[ResultT]:
        """What `job` gives for the shards of a pass over `subset`, in order. Raises as `map`.

        Args:
            stage: what progress is reported as.
            given: the part of the job for a shard.
            in_any_parts: all parts together give the same whatever their number: there are as few
                as keep the workers busy, since what comes back of each is large.
            meanwhile: see `map`.
        """
        executions = len(subset.batches)
        fewest = self.workers * _AHEAD
        parts = shards(executions, fewest, _LONG) if in_any_parts else shards(executions)
        counts = [sum(b.count for b in subset.batches[p.start : p.stop]) for p in parts]
        total, done = sum(counts), 0

        def count(index: int) -> None:
            nonlocal done
            done += counts[index]
            report()

        def report() -> None:
            progress(Progress(stage, done, total, workers_note(self.workers)))

        report()
        return self.map(job, _Lazily(parts, given), count, meanwhile)

    def map(
        self,
        job: Job[PartT, ResultT],
        parts: Sequence[PartT],
        done: Callable[[int], None] = lambda _: None,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Generator[ResultT, None, None]:
        """What `job` gives for each of `parts`, in their order. Closing the iterator early drops
        what is left.

        Args:
            done: called with the number of each part when its result is there, in any order.
            meanwhile: done in this process when the first part is there, and workers have more.

        Raises:
            QdebugError: as the job does.
            ClusterError: workers fail, die or hang over one unit time and again.
        """
        with self.pool(job) as pool:
            pool.done = done
            ahead = 0
            for index in range(len(parts)):
                while ahead < min(len(parts), index + _AHEAD * self.workers):
                    pool.give(parts[ahead])
                    ahead += 1
                found = pool.take(index)
                if not index:
                    meanwhile()
                yield found

    def pool(self, job: Job[PartT, ResultT]) -> Pool[PartT, ResultT]:
        """For parts of `job` that are not all known at first."""
        return Pool(self, self.job(job))

    def home(self, key: tuple[int, int], known: Sequence[str]) -> str:
        """The worker among `known` for a home of a pool: always the same while it is there, unless
        it is also another's while one of them is nobody's."""
        others = Counter(at for other, at in self._homes.items() if other != key)
        fewest = min(others[at] for at in known)
        at = self._homes.get(key, "")
        if at not in known or (others[at] and not fewest):
            self._homes[key] = at = next(one for one in known if others[one] == fewest)
        return at

    def leave_homes(self, pool: int) -> None:
        """A pool needs its homes no more."""
        self._homes = {key: at for key, at in self._homes.items() if key[0] != pool}

    def job(self, job: object) -> SharedFile:
        """The file that holds a job."""
        import cloudpickle

        data = cloudpickle.dumps(job)
        name = f"job-{hashlib.sha256(data).hexdigest()}"
        there = (self.folder / name).exists()
        return shared_file(self.folder / name if there else self.keep(name, data))

    def keep(self, name: str, data: bytes) -> Path:
        """A new file in the folder of this command.

        Raises:
            StoreError: it cannot be written.
        """
        path = self.folder / name
        with kept_in(self.folder.parent, "what workers are to do, or have done,"):
            path.write_bytes(data)
        return path

    def send(self, file: SharedFile, address: str, *, again: bool = False) -> None:
        """Send a file to a worker that does not see it, once. One that is gone needs it no more.

        Args:
            again: the worker has lost it.

        Raises:
            ClusterError: it is not what it was, or the worker loses it time and again.
        """
        sent = address, file.digest
        if sent in self._sent and not again:
            return
        self._sent[sent] += 1
        if not file.is_there():
            raise ClusterError(
                f"{file.path} changed or disappeared while workers needed it",
                "Leave the files that a command was given as they are until it has ended.",
                code="QD-CLUSTER-FILE-CHANGED",
            )
        if self._sent[sent] > _ATTEMPTS:
            raise ClusterError(
                f"the worker {address} was sent {file.path} {_ATTEMPTS} times but does not have it",
                "See whether its folder for temporary files has room.",
                code="QD-CLUSTER-FILE-NOT-KEPT",
            )
        with suppress(OSError):
            for name, offset, data in file.chunks(_CHUNK_BYTES):
                self.client.run(worker.receive, file.digest, name, offset, data, workers=[address])
            self.client.run(worker.received, file.digest, workers=[address])

    def begin_to_wait(self) -> None:
        """From now on it counts how long no worker is there: before, nobody looked."""
        self._seen = time.monotonic()

    def look(self) -> None:
        """Have jobs that ended submitted anew.

        Raises:
            ClusterStartError: no worker has been there for the time of a unit (at least a minute),
                and none waits.
        """
        now, limit = time.monotonic(), max(self.limit_s, _NO_WORKER_S)
        if self.addresses():
            self._seen = now
        elif now - self._seen > limit and not (self.queue and self.queue.waits()):
            paused = sum(worker["status"] == "paused" for worker in self._known().values())
            short = f": {counted(paused, 'worker')} paused, short of memory" if paused else ""
            fail_without_worker(f"the cluster has had no worker for {limit:g} s{short}")
        if self.queue:
            self.queue.renew()

    def start_anew(self, address: str) -> None:
        """Have a worker that hangs ended and started once more, which takes a while.

        Whatever dask raises where that fails is no error: the unit was given to another worker, and
        this one stays away, or is asked about again when the next unit does not end there.
        """

        def restart() -> None:
            with suppress(Exception):
                self.client.restart_workers([address], timeout=_RESTART_S, raise_for_error=False)

        threading.Thread(target=restart, name="qdebug-restart", daemon=True).start()


class Pool(AbstractContextManager["Pool[PartT, ResultT]"], Generic[PartT, ResultT]):
    """Parts of one job on their way. A context manager; to be called from one thread.

    Attributes:
        done: called with the number of each part when its result is there, in any order.
    """

    def __init__(self, cluster: Cluster, job: SharedFile) -> None:
        self.done: Callable[[int], None] = lambda _: None
        self._cluster, self._job = cluster, job
        self._homes: dict[int, int] = {}
        self._operators = tuple(shared_file(path) for path in cluster.sessions.operators)
        self._units: dict[int, Unit[PartT]] = {}
        self._given = 0
        self._running: dict[Future, _Running] = {}
        self._ready: dict[int, Any] = {}
        self._failed: dict[int, QdebugError] = {}
        self._ended: Queue[Future] = Queue()
        self._looked = time.monotonic()

    def __exit__(self, *error: object) -> None:
        if self._cluster.client.status != "closed":  # before whoever iterated let go
            self._cluster.client.cancel(list(self._running))
        self._running.clear()
        self._cluster.leave_homes(id(self))

    def give(self, part: PartT, home: int | None = None) -> int:
        """Have a part executed; its number, counted from 0.

        Args:
            home: parts of one home go to one worker, since it keeps something for them; those of
                different ones to different workers, as far as there are. None: to any.
        """
        number, self._given = self._given, self._given + 1
        if home is not None:
            self._homes[number] = home
        self._units[number] = Unit(
            self._job,
            part,
            operators=self._operators,
            segments=self._cluster.sessions.segmentation,
        )
        self._submit(_Running(number))
        return number

    def take(self, number: int) -> ResultT:
        """Wait for the result of a part, which can be taken once.

        Raises:
            QdebugError: as the job does.
            ClusterError: workers fail, die or hang over it time and again.
        """
        self._cluster.begin_to_wait()
        while number not in self._ready:
            if number in self._failed:
                raise self._failed.pop(number)
            self._wait()
        found: ResultT = self._ready.pop(number)
        self._units.pop(number)
        return found

    def drop(self, numbers: Collection[int]) -> None:
        """Their results are wanted no more."""
        running = [future for future, one in self._running.items() if one.index in numbers]
        for future in running:
            del self._running[future]
        self._cluster.client.cancel(running)
        for number in numbers:
            self._ready.pop(number, None)
            self._failed.pop(number, None)
            self._units.pop(number, None)

    def _submit(self, one: _Running, avoided: str = "") -> None:
        client = self._cluster.client
        others = None
        home = self._homes.get(one.index)
        if avoided or home is not None:
            known = self._cluster.addresses()
            others = [address for address in known if address != avoided] or None
        if home is not None and others:
            one.home = self._cluster.home((id(self), home), others)
            others = [one.home]
        unit = self._units[one.index]
        # A key of its own: of one that was given before dask would take the answer that it had.
        key = f"qdebug-{uuid4().hex}"
        # A worker that joins later may take it too, unless one has the job open.
        loosely = bool(others) and not one.home
        one.preferred = frozenset(others or ()) if loosely else frozenset()
        future = client.submit(
            worker.execute, unit, key=key, workers=others, allow_other_workers=loosely
        )
        self._running[future] = one
        future.add_done_callback(self._ended.put)

    def _once_more(self, one: _Running, why: ClusterError, avoided: str = "") -> None:
        if one.attempt + 1 >= _ATTEMPTS:
            self._failed[one.index] = why
            return
        self._submit(_Running(one.index, one.attempt + 1), avoided)

    def _leave(self, future: Future, one: _Running) -> None:
        """Its home has gone, which dask would wait for."""
        self._cluster.client.cancel([future])
        self._once_more(one, _died())

    def _wait(self) -> None:
        """Wait for a result for a moment, and take those that are there."""
        with suppress(Empty):
            self._end(self._ended.get(timeout=_LOOK_EVERY_S))
            for _ in range(self._ended.qsize()):  # what is put back meanwhile comes later
                self._end(self._ended.get_nowait())
        if time.monotonic() - self._looked >= _LOOK_EVERY_S:
            self._looked = time.monotonic()
            self._cluster.look()
            self._look_for_hanging()

    def _end(self, future: Future) -> None:
        one = self._running.pop(future, None)
        if one is not None:  # it was not given up meanwhile
            self._settle(future, one)

    def _settle(self, future: Future, one: _Running) -> None:
        if one.home and one.home not in self._cluster.addresses():
            self._leave(future, one)
            return
        limit = min(one.patience_s, self._limit) if one.home else self._limit
        try:
            sent: worker.Sent = future.result(timeout=limit)
        except QdebugError as error:
            self._failed[one.index] = error
            return
        except CancelledError:  # the scheduler lost it
            self._once_more(one, _lost())
            return
        except Exception as error:  # whatever was raised there comes here as it is
            if isinstance(error, TimeoutError) and future.status != "error":
                one.patience_s *= 2  # its worker went before the result was fetched, or it is large
                self._running[future] = one
                self._ended.put(future)
            else:
                self._failed[one.index] = _failure(error)
            return
        self._cluster._last_result[sent.worker] = time.monotonic()
        if sent.missing is None:
            self._ready[one.index] = sent.result
            self.done(one.index)
            return
        lacked = sent.worker, sent.missing.digest
        again = lacked in one.helped  # it has lost what it was sent
        self._cluster.send(sent.missing, sent.worker, again=again)
        helped = one.helped | {lacked}
        self._submit(_Running(one.index, one.attempt, helped=helped))

    def _look_for_hanging(self) -> None:
        """Give units that take too long to another worker, and have theirs started anew. What
        others have on a worker may be before ours, and each of it may take as long."""
        client, now = self._cluster.client, time.monotonic()
        known, own = self._cluster.addresses(), {future.key for future in self._running}
        processing = client.processing()
        places = {key: address for address, keys in processing.items() for key in keys}
        others = {address: len(set(keys) - own) for address, keys in processing.items()}
        for future, one in list(self._running.items()):
            if one.home and one.home not in known:
                del self._running[future]
                self._leave(future, one)
                continue
            address = places.get(future.key)
            if address is None:
                if one.preferred.isdisjoint(known) and one.preferred and not future.done():
                    # Where nobody is there when it is submitted, dask waits for these alone.
                    del self._running[future]
                    client.cancel([future])
                    self._submit(_Running(one.index, one.attempt, helped=one.helped))
                continue
            if one.since is None or others[address] < one.others:
                one.since = now
            one.others = others[address]
            last = max(one.since, self._cluster._last_result.get(address, 0.0))
            if now - last < self._limit * (1 + one.others):
                continue
            del self._running[future]
            client.cancel([future], force=True)
            self._cluster.start_anew(address)
            self._once_more(one, self._hangs(), address)

    @property
    def _limit(self) -> float:
        return self._cluster.limit_s

    def _hangs(self) -> ClusterError:
        return ClusterError(
            f"a part of the work did not end within {self._limit:g} s on any of {_ATTEMPTS} "
            "workers",
            f"Give it more time with {option('unit_timeout')}, or see whether one sample runs: "
            f"{option('samples', '1')} without {option('cluster')}.",
            code="QD-CLUSTER-TIMEOUT",
        )


@dataclass(frozen=True)
class _Lazily(Sequence[Any]):
    """The parts for some shards, each made when it is given away."""

    shards: Sequence[Shard]
    given: Callable[[Shard], Any]

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, index: Any) -> Any:
        return self.given(self.shards[index])


def workers_note(workers: int) -> str:
    """How many work, for whoever shows progress."""
    return counted(workers, "worker")


def fail_without_worker(what: str) -> NoReturn:
    """Nobody is there who works.

    Raises:
        ClusterStartError: always.
    """
    raise ClusterStartError(
        what,
        "Start a scheduler (`dask scheduler`) and workers (`dask worker ADDRESS`), or use "
        f"{option('cluster', 'local:4')}.",
        code="QD-CLUSTER-NO-WORKER",
    )


def _lost() -> ClusterError:
    return ClusterError(
        f"a part of the work was lost {_ATTEMPTS} times",
        "See whether the scheduler still runs.",
        code="QD-CLUSTER-LOST",
    )


def _died() -> ClusterError:
    return ClusterError(
        "a part of the work ended the process of every worker that it was given to",
        f"It may need more memory than they have: lower {option('batch_size')}, or give each "
        "worker more.",
        code="QD-CLUSTER-WORKER-DIED",
    )


def _failure(error: Exception) -> ClusterError:
    """What dask reports of a unit that did not end as it should."""
    from distributed import KilledWorker

    if isinstance(error, KilledWorker):
        return _died()
    return ClusterError(
        f"a worker failed: {type(error).__name__}: {error}",
        "Install the same version of qdebug, and of what the backend needs, where workers run.",
        code="QD-CLUSTER-WORKER-FAILED",
    )
