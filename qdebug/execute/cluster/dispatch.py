"""The workers of dask.distributed, which gives parts to idle ones, and those of workers that die to
others; its settings say how often, and how long it waits."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from uuid import uuid4

from qdebug import __version__
from qdebug.errors import ClusterError, ClusterStartError, QdebugError
from qdebug.execute.cluster import worker
from qdebug.execute.cluster.sharing import Sharing
from qdebug.run.executor import Work
from qdebug.wording import option

if TYPE_CHECKING:
    from distributed import Client, Future

PartT = TypeVar("PartT")
ResultT = TypeVar("ResultT")

_AHEAD = 4
"""Parts that are given away before the first of them has been taken, for each worker: as many keep
all busy, and their results bound the memory."""


class DaskExecutor:
    """See Executor."""

    def __init__(self, client: Client, folder: Path) -> None:
        """`folder` is for files that this process makes for workers."""
        self.client = client
        self._sharing = Sharing(folder)
        self._last: tuple[object, Future] | None = None
        self._places: list[str] = []

    @property
    def workers(self) -> int:
        """See Executor."""
        return max(1, len(self._addresses()))

    def _addresses(self) -> list[str]:
        """Of the workers that there are now, and work.

        Raises:
            ClusterError: the scheduler is gone.
        """
        try:
            known = self.client.scheduler_info(n_workers=-1)["workers"]
        except (OSError, KeyError, ValueError):  # whatever a client without a scheduler does
            _fail_without_scheduler()
        return [at for at, found in known.items() if found["status"] == "running"]

    def map(
        self,
        work: Work[PartT, ResultT],
        parts: Iterable[PartT],
        near: Callable[[PartT], int | None] = lambda _: None,
    ) -> Generator[ResultT, None, None]:
        """See Executor."""
        job, group, places = self._job(work), f"qdebug-{uuid4().hex}", self._settled_places()
        waiting = (
            self._given(job, (group, number), part, near(part), places)
            for number, part in enumerate(parts)
        )
        given = deque(islice(waiting, _AHEAD * self.workers))
        return self._taken(given, waiting)

    def _given(
        self, job: Future, key: tuple[str, int], part: Any, near: int | None, places: list[str]
    ) -> Future:
        at = [places[near % len(places)]] if near is not None and places else None
        return self.client.submit(
            worker.execute,
            job,
            self._sharing.dumps(part),
            key=key,
            workers=at,
            allow_other_workers=at is not None,
        )

    def _taken(self, given: deque[Future], waiting: Iterator[Future]) -> Generator[Any, None, None]:
        try:
            while given:
                yield _result(given.popleft())
                room = _AHEAD * self.workers - len(given)
                given.extend(islice(waiting, max(0, room)))
        finally:
            if given and self.client.status == "running":
                self.client.cancel(list(given))

    def _job(self, work: object) -> Future:
        """The work on its way, which dask sends each worker once, and again to those that come
        later."""
        if self._last is None or self._last[0] is not work:
            data = self._sharing.dumps(work)
            job = worker.Job(hashlib.sha256(data).hexdigest(), data, __version__)
            self._last = work, self.client.submit(_itself, job, key=f"qdebug-{uuid4().hex}")
        return self._last[1]

    def _settled_places(self) -> list[str]:
        """The workers, each of them at the place that it had before."""
        now = self._addresses()
        new = iter([at for at in now if at not in self._places])
        kept = (at if at in now else next(new, "") for at in self._places)
        self._places = [*filter(None, kept), *new]
        return self._places


def _itself(job: worker.Job) -> worker.Job:
    return job


def _result(future: Future) -> Any:
    """What a worker found.

    Raises:
        QdebugError: as the work does.
        ClusterError: workers fail or die over it time and again, or are gone.
    """
    from distributed import KilledWorker
    from distributed.comm import CommClosedError
    from distributed.scheduler import NoWorkerError

    try:
        return future.result()
    except QdebugError:
        raise
    except KilledWorker as error:
        raise ClusterError(
            "a part of the work ended the process of every worker that it was given to",
            f"It may need more memory than they have: lower {option('batch_size')}, or give each "
            "worker more.",
            code="QD-CLUSTER-WORKER-DIED",
        ) from error
    except NoWorkerError as error:
        fail_without_worker(f"all workers went, and none came: {error}")
    except (CancelledError, CommClosedError):
        _fail_without_scheduler()
    except Exception as error:  # whatever was raised there comes here as it is
        raise ClusterError(
            f"a worker failed: {type(error).__name__}: {error}",
            "Install the same version of qdebug, and of what the backend needs, where workers run.",
            code="QD-CLUSTER-WORKER-FAILED",
        ) from error


def _fail_without_scheduler() -> NoReturn:
    """The scheduler is gone.

    Raises:
        ClusterError: always.
    """
    raise ClusterError(
        "the scheduler does not answer any more, or lost the work",
        "See whether it still runs, then start the command again.",
        code="QD-CLUSTER-LOST",
    )


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
