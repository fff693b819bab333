"""What a worker process does: execute parts, with what their work has opened kept between them."""

from __future__ import annotations

import os
import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from qdebug import __version__
from qdebug.errors import ClusterError

_MOST_OPEN = 2
"""Works whose sessions a process holds: a search goes back and forth between its samples and those
held out, other commands go from one to the next."""


@dataclass(frozen=True)
class Job:
    """Some work, as it travels.

    Attributes:
        key: equal for equal work.
        work: pickled; see Executor.
        version: of qdebug, which workers must have too.
    """

    key: str
    work: bytes
    version: str


class _Jobs:
    """The jobs that this process has open, the one used last at the end."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._open: OrderedDict[str, tuple[ExitStack, Callable[[Any], Any]]] = OrderedDict()

    def opened(self, job: Job) -> Callable[[Any], Any]:
        if job.key in self._open:
            self._open.move_to_end(job.key)
            return self._open[job.key][1]
        while len(self._open) >= _MOST_OPEN:
            self._open.popitem(last=False)[1][0].close()
        with ExitStack() as stack:
            run: Callable[[Any], Any] = pickle.loads(job.work)(stack)
            self._open[job.key] = stack.pop_all(), run
        return run


_jobs = _Jobs()


def execute(job: Job, part: bytes) -> Any:
    """The result of a part; one at a time, which uses all threads of the worker.

    Raises:
        ClusterError: the worker has another version of qdebug, or sees other files.
        QdebugError: as the work does.
    """
    forget_safe_path()
    if job.version != __version__:
        raise ClusterError(
            f"a worker has qdebug {__version__}, this process {job.version}",
            "Install the same version everywhere.",
            code="QD-CLUSTER-VERSION",
        )
    with _jobs.lock:
        return _jobs.opened(job)(pickle.loads(part))


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


def begin() -> None:
    """Import what most work needs, which takes a second, while the command reads its files."""
    threading.Thread(target=_warm, name="qdebug-imports", daemon=True).start()


def _warm() -> None:
    for name in ("qdebug.run.runner", "qdebug.execute.model_pair"):
        import_module(name)
    import_module("onnxruntime")  # otherwise the first session does
