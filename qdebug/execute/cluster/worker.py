"""What a worker process does: execute units, with what their jobs have opened kept between them."""

from __future__ import annotations

import os
import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from qdebug import __version__
from qdebug.backends.options import SessionSettings
from qdebug.errors import ClusterError
from qdebug.execute.cluster import files
from qdebug.execute.cluster.files import SharedFile
from qdebug.execute.cluster.unit import Last, NotHere, Place, Unit

_MOST_OPEN = 2
"""Jobs whose sessions a process holds: a search goes back and forth between its samples and those
held out, other commands go from one to the next."""


@dataclass(frozen=True)
class Sent:
    """What comes back of a unit: its result, or the file that must be sent first."""

    result: Any = None
    missing: SharedFile | None = None
    worker: str = ""


class _Jobs:
    """The jobs that this process has open, the one used last at the end; `last` is as of Place."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.last = Last()
        self._open: OrderedDict[str, tuple[ExitStack, Callable[[Any], Any]]] = OrderedDict()

    def opened(self, unit: Unit[Any], place: Place) -> Callable[[Any], Any]:
        file = unit.job
        if file.digest in self._open:
            self._open.move_to_end(file.digest)
            return self._open[file.digest][1]
        while len(self._open) >= _MOST_OPEN:
            self._open.popitem(last=False)[1][0].close()
        operators = tuple(Path(place.path(library)) for library in unit.operators)
        sessions = SessionSettings(operators, unit.segments)
        sessions.check()
        job = pickle.loads(Path(place.path(file)).read_bytes())
        with ExitStack() as stack:
            run: Callable[[Any], Any] = job.open(replace(place, sessions=sessions), stack)
            self._open[file.digest] = (stack.pop_all(), run)
        return run


_jobs = _Jobs()


_SAFE_PATH, _OURS = "PYTHONSAFEPATH", "qdebug"
"""Python starts a process with its code on the command line, which takes the files of the current
folder for modules, unless this variable has a value, whichever."""


@contextmanager
def safe_path() -> Iterator[dict[str, str]]:
    """Processes that Python starts within take no file of the current folder for a module. Gives
    the variable that sees to it."""
    value = os.environ.get(_SAFE_PATH) or _OURS
    os.environ[_SAFE_PATH] = value
    try:
        yield {_SAFE_PATH: value}
    finally:
        forget_safe_path()


def forget_safe_path() -> None:
    """Programs that the user's code starts import as they would without qdebug."""
    if os.environ.get(_SAFE_PATH) == _OURS:  # not where the user has set it
        del os.environ[_SAFE_PATH]


def execute(unit: Unit[Any]) -> Sent:
    """The result of a unit; one at a time, which uses all threads of the worker.

    Raises:
        ClusterError: the worker has another version of qdebug.
        QdebugError: as the unit does.
    """
    from distributed import get_worker

    forget_safe_path()
    worker = get_worker()
    if unit.version != __version__:
        raise ClusterError(
            f"the worker {worker.address} has qdebug {__version__}, this process {unit.version}",
            "Install the same version everywhere.",
            code="QD-CLUSTER-VERSION",
        )
    place = Place(_inbox(worker), max(1, worker.state.nthreads), _jobs.last)
    try:
        with _jobs.lock:
            return Sent(_jobs.opened(unit, place)(unit.part), worker=worker.address)
    except NotHere as missing:
        return Sent(missing=missing.file, worker=worker.address)


def begin() -> None:
    """Import what most jobs need, which takes a second, while the client reads its files."""
    threading.Thread(target=warm, name="qdebug-imports", daemon=True).start()


def warm() -> None:
    """Import what most jobs need."""
    import_module("onnxruntime")  # otherwise the first session does


def receive(digest: str, name: str, offset: int, data: bytes, dask_worker: Any) -> None:
    """Take a part of a file; dask gives its worker by that name."""
    files.receive(_inbox(dask_worker), digest, name, offset, data)


def received(digest: str, dask_worker: Any) -> None:
    """The file is complete."""
    files.received(_inbox(dask_worker), digest)


def _inbox(worker: Any) -> Path:
    return Path(worker.local_directory) / "qdebug"
