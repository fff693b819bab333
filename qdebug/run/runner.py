"""Runs variants over samples, batch by batch, and adds up what reducers compute of them.

Every command that executes models does it here. Time, interruptions, threads, workers, progress and
what is kept on disk are looked after in this file and nowhere else.
"""

from __future__ import annotations

import hashlib
import math
import platform
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, closing
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable
from uuid import uuid4

from qdebug.backends.base import Session
from qdebug.backends.stream import Threads
from qdebug.errors import BackendError, ModelError, PlanError, QdebugError
from qdebug.memo import Memo, digest_of
from qdebug.metrics.accumulate import ExecutedBatch
from qdebug.network.samples import Batch
from qdebug.network.samples.subset import SampleSubset
from qdebug.run.executor import THIS_PROCESS, Executor, Shard, shards_of, workers_note
from qdebug.run.timelimit import OutOfTimeError, check_time
from qdebug.run.variant import Reducer, Variant
from qdebug.types import Feeds, Progress, ProgressCallback, Tensors, ignore_progress

Results = dict[str, Any]
"""By the names of reducers."""
Sink = Callable[[Any], None]
"""Takes the result of a reducer on a batch."""
NO_SINKS: Mapping[str, Sink] = MappingProxyType({})

_HELD_BYTES = 256 << 20
"""Of inputs, and as much again of the tensors of shared variants, that a runner holds in memory.
Beyond that, samples are read and such variants run again for each job."""
_POLL_S = 0.05
"""Between two looks at whether what was interrupted has ended."""
_OPEN_JOBS = 2
"""Whose sessions a worker of an executor holds."""


@dataclass(frozen=True)
class Job:
    """Reducers that read the same variants, and these, in the order in which they run.

    Attributes:
        key: no other job has it, in any process.
    """

    variants: Mapping[str, Variant]
    reducers: Mapping[str, Reducer[Any]]
    key: str = field(default_factory=lambda: uuid4().hex)


@dataclass(frozen=True)
class Part:
    """A job on the batches of a shard."""

    job: Job
    shard: Shard


class Runner:
    """Runs variants over the batches of some samples.

    Its results do not depend on the number of threads or workers: those of batches are merged
    within fixed shards, and those of shards in order.

    Attributes:
        has_run: something was executed; otherwise all results were kept on disk.
    """

    def __init__(
        self,
        subset: SampleSubset,
        *,
        workers: int = 1,
        ends_at: float = math.inf,
        progress: ProgressCallback = ignore_progress,
        executor: Executor = THIS_PROCESS,
        memo: Memo | None = None,
    ) -> None:
        """A runner over `subset`, in its batches.

        Args:
            workers: parts of jobs in flight in this process.
            ends_at: nothing begins or goes on later than this, on the clock of `time.monotonic`.
            executor: spreads parts of jobs over other processes.
            memo: keeps results on disk.
        """
        self.subset = subset
        self._workers, self._ends_at = max(1, workers), ends_at
        self._progress, self._executor, self._memo = progress, executor, memo
        self.has_run = False
        self._parts = _PartRunner(subset)
        self._remote = partial(_open_parts, subset=subset)

    def until(self, ends_at: float) -> Runner:
        """The same, which neither begins nor goes on later than `ends_at`. One of them runs at a
        time: they share what is held in memory."""
        other = copy(self)
        other._ends_at = ends_at
        return other

    def run(
        self,
        variants: Mapping[str, Variant],
        reducers: Mapping[str, Reducer[Any]],
        stage: str = "",
        *,
        attempt: bool = False,
        sinks: Mapping[str, Sink] = NO_SINKS,
    ) -> Results:
        """The result of each reducer, by its name. See `each`."""
        return dict(self.each(variants, reducers, stage, attempt=attempt, sinks=sinks))

    def each(
        self,
        variants: Mapping[str, Variant],
        reducers: Mapping[str, Reducer[Any]],
        stage: str = "",
        *,
        attempt: bool = False,
        sinks: Mapping[str, Sink] = NO_SINKS,
    ) -> Iterator[tuple[str, Any]]:
        """The name and the result of each reducer, as soon as it is there: first those that are
        kept on disk, then the others in order.

        Args:
            variants: by the name that reducers read them by; one that another feeds stands behind
                it.
            stage: what progress is reported as; "" reports none.
            attempt: where a model cannot be made, opened or run, the error is the result of the
                reducers that read it.
            sinks: by the names of reducers, what takes their results batch by batch, in order, as
                soon as they are there: these are neither merged nor given back.

        Raises:
            QdebugError: samples cannot be read, a reducer refuses what it is given, or a model
                fails and that is not to be attempted.
            OutOfTimeError: the time is over; what was there before is kept.
        """
        keys = {name: self._key(one, variants) for name, one in reducers.items()}
        due = dict(reducers)
        for name, key in keys.items():
            kept = self._memo.get(key) if self._memo and key and name not in sinks else None
            if kept is not None:
                del due[name]
                yield name, kept
        jobs = jobs_of(variants, due)
        self.has_run |= bool(jobs)
        for job, results in self._executed(jobs, stage, sinks, attempt=attempt):
            for name in (n for n in job.reducers if n not in sinks):
                result = results if isinstance(results, QdebugError) else results[name]
                key = keys[name]
                if self._memo and key and not isinstance(result, QdebugError):
                    self._memo.put(key, result)
                yield name, result

    def batches(
        self, variants: Mapping[str, Variant], stage: str = ""
    ) -> Generator[ExecutedBatch, None, None]:
        """Each batch after all variants, in order, as soon as it is there, for what needs no sums
        or ends before the last one; closing it ends the run, which is in this process.

        Raises:
            QdebugError: see `each`.
        """
        job = Job(variants, {"": _AsExecuted(tuple(variants))})
        parts = (Part(job, Shard(k, k + 1)) for k in range(len(self.subset.batches)))
        done = 0
        with closing(self._here(parts, stage)) as results:
            for part, found in results:
                if isinstance(found, QdebugError):
                    raise found
                yield found[""]
                done += self.subset.batches[part.shard.start].count
                if stage:
                    self._progress(Progress(stage, done, self.subset.count))

    def _key(self, reducer: Reducer[Any], variants: Mapping[str, Variant]) -> str | None:
        """Equal where the result is; None where it must not be kept."""
        if self._memo is None or reducer.key is None:
            return None
        read = _closure(reducer.reads, variants)
        if any(one.key is None for one in read.values()):
            return None
        # By their order, not by their names: a candidate may be called otherwise the next time.
        models = [(v.key, sorted(v.capture.items()), v.feeds, v.batches) for v in read.values()]
        machine = version("onnxruntime"), platform.machine()
        return digest_of(reducer.key, models, self._parts.data.digest, machine)

    def _executed(
        self, jobs: Sequence[Job], stage: str, sinks: Mapping[str, Sink], *, attempt: bool
    ) -> Iterator[tuple[Job, Results | QdebugError]]:
        count = len(self.subset.batches)
        shards = shards_of(count)
        ends = {shard.stop for shard in shards}
        if sinks or not self._executor.workers:  # else a whole shard travels at once
            shards = [Shard(k, k + 1) for k in range(count)]
        failed: set[str] = set()
        total, current = Results(), Results()
        done, samples = 0, len(jobs) * self.subset.count
        parts = (Part(job, shard) for job in jobs for shard in shards if job.key not in failed)
        for part, found in self._in_order(parts, stage):
            job, shard = part.job, part.shard
            done += sum(b.count for b in self.subset.batches[shard.start : shard.stop])
            if stage:
                self._progress(Progress(stage, done, samples, workers_note(self._executor)))
            if job.key in failed:
                continue
            if isinstance(found, QdebugError):
                if not attempt:
                    raise found
                failed.add(job.key)
                total, current = {}, {}
                yield job, found
                continue
            for name in sinks.keys() & found.keys():
                sinks[name](found.pop(name))
            current = _merged(job, current, found) if current else found
            if shard.stop in ends:
                total = _merged(job, total, current) if total else current
                current = {}
            if shard.stop == count:
                self._parts.finish(job.key)
                yield job, total
                total = {}

    def _in_order(
        self, parts: Iterable[Part], stage: str
    ) -> Iterator[tuple[Part, Results | QdebugError]]:
        """What each part gives, in order. Only as many are begun as can be worked on, so that few
        jobs have sessions open."""
        if self._executor.workers:
            given: deque[Part] = deque()
            results = self._executor.map(self._remote, _noted(parts, given), _near)
            with closing(results):
                for found in results:
                    check_time(self._ends_at, stage)
                    yield given.popleft(), found
        else:
            yield from self._here(parts, stage)

    def _here(
        self, parts: Iterable[Part], stage: str
    ) -> Generator[tuple[Part, Results | QdebugError], None, None]:
        """The same in this process."""
        waiting: deque[tuple[Part, Future[Results | QdebugError]]] = deque()
        self._parts.begin(self._ends_at, stage)
        pool = Threads(self._workers)
        try:
            for part in parts:
                waiting.append((part, pool.submit(self._parts, part)))
                if len(waiting) > self._workers:
                    yield waiting[0][0], self._result(waiting[0][1], stage)
                    waiting.popleft()
            while waiting:
                yield waiting[0][0], self._result(waiting[0][1], stage)
                waiting.popleft()
        finally:
            # After Ctrl-C, at a time limit or an error, what runs inside of the runtime ends, too.
            pool.shutdown(wait=False, cancel_futures=True)
            self._parts.interrupt()
            while self._parts.active:
                time.sleep(_POLL_S)
                self._parts.interrupt()
            self._parts.close()

    def _result(self, future: Future[Results | QdebugError], stage: str) -> Results | QdebugError:
        """What a part gave; this thread waits, so that it can be interrupted meanwhile.

        Raises:
            OutOfTimeError: it is not done in time.
        """
        left = None if math.isinf(self._ends_at) else max(0.0, self._ends_at - time.monotonic())
        if wait([future], timeout=left).not_done:
            raise OutOfTimeError(stage)
        return future.result()


@dataclass(frozen=True)
class _AsExecuted:
    """Gives batches as they are. See Reducer."""

    reads: tuple[str, ...]
    key: None = None

    def reduce(self, executed: ExecutedBatch) -> ExecutedBatch:
        """See Reducer."""
        return executed

    def merge(self, before: ExecutedBatch, after: ExecutedBatch) -> ExecutedBatch:
        """See Reducer: there is one at a time."""
        return after


class _PartRunner:
    """Executes parts, several at once. Sessions stay open until their job is finished; what shared
    variants gave is held for the jobs that follow."""

    def __init__(self, subset: SampleSubset) -> None:
        self.data = Data(subset)
        self._lock = threading.Lock()
        self._jobs: dict[str, _Sessions] = {}
        self._shared = _Sessions()
        self._held: dict[tuple[object, ...], dict[int, Tensors]] = {}
        self._room = _HELD_BYTES
        self._ended, self._limit = False, (math.inf, "")
        self.active = 0

    def __call__(self, part: Part) -> Results | QdebugError:
        """What the reducers of a job give for a shard; the error of a model that fails.

        Raises:
            QdebugError: any other one.
        """
        job, total = part.job, Results()
        with self._lock:
            self.active += 1
            sessions = self._jobs.setdefault(job.key, _Sessions())
        try:
            batches = self.data.subset.batches[part.shard.start : part.shard.stop]
            for batch in batches:
                found = self._reduced(job, sessions, batch)
                total = _merged(job, total, found) if total else found
        except (BackendError, ModelError, PlanError) as error:
            return error
        finally:
            with self._lock:
                self.active -= 1
        return total

    def begin(self, ends_at: float, stage: str) -> None:
        """Be ready, also after an interruption, to begin batches until `ends_at`."""
        self._ended, self._limit = False, (ends_at, stage)

    def finish(self, *jobs: str) -> None:
        """Close the sessions of the jobs with these keys."""
        for key in jobs:
            with self._lock:
                sessions = self._jobs.pop(key, None)
            if sessions is not None:
                sessions.close()

    def finish_all_but(self, jobs: int) -> None:
        """Close the sessions of all but the last jobs that began."""
        self.finish(*list(self._jobs)[:-jobs])

    def interrupt(self) -> None:
        """End what runs inside of the runtime; parts that are under way raise an error."""
        self._ended = True
        for sessions in (self._shared, *self._jobs.values()):
            sessions.interrupt()

    def close(self) -> None:
        """Close all sessions; the next part opens what it needs."""
        self.finish(*self._jobs)
        self._shared.close()

    def _reduced(self, job: Job, sessions: _Sessions, batch: Batch) -> Results:
        runs: dict[str, Tensors] = {}
        executed = ExecutedBatch(batch, self.data.feeds(batch), runs)
        check_time(*self._limit)
        for name, variant in job.variants.items():
            if self._ended:
                raise BackendError("the run was interrupted", code="QD-BACKEND-CLOSED")
            if variant.batches is not None and batch.index not in variant.batches:
                runs[name] = {}
            elif variant.shared:
                runs[name] = self._held_or_run(variant, executed)
            else:
                # Variants of one model share its session.
                key = name if variant.key is None else _identity(variant)
                runs[name] = sessions.run(key, variant, executed)
        return {name: reducer.reduce(executed) for name, reducer in job.reducers.items()}

    def _held_or_run(self, variant: Variant, executed: ExecutedBatch) -> Tensors:
        key, index = _identity(variant), executed.batch.index
        held = self._held.setdefault(key, {})
        if (tensors := held.get(index)) is None:
            tensors = self._shared.run(key, variant, executed)
            self._room -= sum(array.nbytes for array in tensors.values())
            if self._room >= 0:
                held[index] = tensors
        return tensors


class _Sessions:
    """The sessions of some variants, each opened when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[object, Session] = {}

    def run(self, key: object, variant: Variant, executed: ExecutedBatch) -> Tensors:
        """What a variant, which has `key` among them, gives for a batch.

        Raises:
            ModelError, BackendError, PlanError: it cannot be made, opened or run.
        """
        feeds = variant.feeds(executed) if variant.feeds else executed.feeds
        tensors = self._opened(key, variant).run(feeds)
        named = {name: tensors[t] for name, t in variant.capture.items() if t in tensors}
        return {**tensors, **named}

    def _opened(self, key: object, variant: Variant) -> Session:
        with self._lock:
            if key not in self._open:
                captured = [*variant.capture.values()]
                self._open[key] = variant.backend.open(variant.make(), captured)
            return self._open[key]

    def interrupt(self) -> None:
        """End what they execute."""
        for session in list(self._open.values()):
            if isinstance(session, Interruptible):
                session.interrupt()

    def close(self) -> None:
        """Close them; later ones are opened anew."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()


class Data:
    """The inputs of some samples, held in memory as far as there is room."""

    def __init__(self, subset: SampleSubset) -> None:
        self.subset = subset
        self._held: dict[int, Feeds] = {}
        self._room = _HELD_BYTES

    def feeds(self, batch: Batch) -> Feeds:
        """Those of a batch.

        Raises:
            SampleError: they cannot be read.
        """
        feeds = self._held.get(batch.index)
        if feeds is None:
            feeds = self.subset.samples.feeds(batch.start, batch.count)
            self._room -= sum(array.nbytes for array in feeds.values())
            if self._room >= 0:
                self._held[batch.index] = feeds
        return feeds

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the samples of all batches, and of how these divide them.

        Pictures, recordings and texts count by their files and by what is done to them: to decode
        them once more would take as long as the network may.
        """
        samples = self.subset.samples
        found, stamps = hashlib.sha256(), samples.origin.stamps
        by_files = bool(samples.origin.told and stamps)
        if by_files:
            spec = replace(samples.spec, model="", setting="", limited_by="")
            found.update(repr((spec, sorted(stamps.items()))).encode())
        for batch in self.subset.batches:
            found.update(repr(batch).encode())
            for name, array in () if by_files else sorted(self.feeds(batch).items()):
                found.update(repr((name, array.dtype, array.shape)).encode())
                found.update(array.tobytes())
        return found.hexdigest()


@runtime_checkable
class Interruptible(Protocol):
    """A session that can end what it executes."""

    def interrupt(self) -> None:
        """Whatever runs now raises BackendError, soon."""
        ...


def jobs_of(variants: Mapping[str, Variant], reducers: Mapping[str, Reducer[Any]]) -> list[Job]:
    """Reducers that read a variant which is not shared are of one job: it runs once for them."""
    read = {name: _closure(reducer.reads, variants) for name, reducer in reducers.items()}
    job_of: dict[str, list[str]] = {}
    jobs: list[list[str]] = []
    for name, models in read.items():
        own = [v for v, variant in models.items() if not variant.shared]
        joined = [name]
        for other in {id(job_of[v]): job_of[v] for v in own if v in job_of}.values():
            jobs.remove(other)
            joined = other + joined
        jobs.append(joined)
        job_of |= {v: joined for n in joined for v, x in read[n].items() if not x.shared}
    return [
        Job(
            {v: x for v, x in variants.items() if any(v in read[n] for n in names)},
            {n: reducers[n] for n in names},
        )
        for names in jobs
    ]


def _closure(reads: Iterable[str], variants: Mapping[str, Variant]) -> dict[str, Variant]:
    """The variants of these names, and those that feed them."""
    found: dict[str, Variant] = {}
    for name in reads:
        found |= _closure(variants[name].reads, variants) | {name: variants[name]}
    return found


def _identity(variant: Variant) -> tuple[object, ...]:
    return variant.key or id(variant), *variant.capture.items()


def _merged(job: Job, before: Results, after: Results) -> Results:
    return {name: job.reducers[name].merge(before[name], after[name]) for name in before}


def _noted(parts: Iterable[Part], given: deque[Part]) -> Iterator[Part]:
    for part in parts:
        given.append(part)
        yield part


def _near(part: Part) -> int:
    return part.shard.start


def _open_parts(
    stack: ExitStack, *, subset: SampleSubset
) -> Callable[[Part], Results | QdebugError]:
    """What executes parts on a worker."""
    parts = _PartRunner(subset)
    stack.callback(parts.close)

    def run(part: Part) -> Results | QdebugError:
        found = parts(part)
        parts.finish_all_but(_OPEN_JOBS)
        return found

    return run
