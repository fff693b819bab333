"""What runs in the process that a TensorRT library has to itself; process.py starts it.

Requests come on standard input one after the other, replies go to what was standard output. What
the library prints, and its messages, are written to standard error: they are the log that is left
of a process that dies.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from itertools import count
from queue import SimpleQueue
from typing import Any

import numpy as np

from qdebug.backends.base import Session
from qdebug.backends.tensorrt.build.logger import LOG
from qdebug.types import Progress, Skipped
from qdebug.wording import spelled_by

SHOWN = (
    *("name", "label", "provider_name", "built_for", "target"),
    *("device_name", "not_run", "typing", "ways", "keeps"),
)
"""Attributes of an EngineRuntime."""


class Reply(Enum):
    """What a reply is."""

    PROGRESS = auto()
    DONE = auto()
    FAILED = auto()


@dataclass(frozen=True)
class Opening:
    """How a runtime is made.

    Attributes:
        factory: opens it.
        settings: its keywords.
        changes: methods that each give a changed runtime, with their arguments.
    """

    factory: Callable[..., Any]
    settings: Mapping[str, Any]
    changes: tuple[tuple[str, tuple[Any, ...]], ...] = ()


@dataclass(frozen=True)
class OpenSession:
    """A session that is open in the child."""

    number: int
    dtypes: Mapping[str, np.dtype[np.generic]]
    skipped: tuple[Skipped, ...]


class Child:
    """Answers requests. Each of the public methods is one."""

    def __init__(self, progress: Callable[[Progress], None]) -> None:
        """`progress` is told of builds."""
        self._progress = progress
        self._runtimes: dict[bytes, Any] = {}
        self._sessions: dict[int, Session] = {}
        self._numbers = count()

    def describe(self, opening: Opening) -> dict[str, Any]:
        """The attributes of a runtime, which is made."""
        runtime = self._runtime(opening)
        return {name: getattr(runtime, name) for name in SHOWN}

    def call(self, opening: Opening, method: str, arguments: Sequence[Any]) -> Any:
        """What a method of a runtime gives."""
        return getattr(self._runtime(opening), method)(*arguments)

    def open(self, opening: Opening, method: str, arguments: Sequence[Any]) -> OpenSession:
        """The same of a method that gives a session, which stays here."""
        session: Session = self.call(opening, method, arguments)
        number = next(self._numbers)
        self._sessions[number] = session
        return OpenSession(number, session.dtypes, session.skipped)

    def run(self, number: int, method: str, arguments: Sequence[Any]) -> Any:
        """What a method of a session gives."""
        return getattr(self._sessions[number], method)(*arguments)

    def close(self, *numbers: int) -> None:
        """Close sessions; without a number all of them."""
        for number in numbers or tuple(self._sessions):
            self._sessions.pop(number).close()

    def function(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """What a function gives."""
        return function(*arguments)

    def _runtime(self, opening: Opening) -> Any:
        key = pickle.dumps(opening)
        if key not in self._runtimes:
            made = opening.factory(**opening.settings, progress=self._progress)
            for method, arguments in opening.changes:
                made = getattr(made, method)(*arguments)
            self._runtimes[key] = made
        return self._runtimes[key]


def as_mark(name: str, value: str | None) -> str:
    """A setting in a message, which the process that asks spells as its user knows it."""
    return f"⟦{name}⟧" if value is None else f"⟦{name}={value}⟧"


def _portable(error: Exception) -> Exception:
    """`error`, or its text where its class cannot be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError("".join(traceback.format_exception(error)))
    return error


def main() -> None:
    """Answer until the input ends. Where that happens in the middle of an answer, nobody waits for
    it: the process ends at once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks decides
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    LOG.addHandler(logging.StreamHandler())
    LOG.setLevel(logging.DEBUG)
    requests: SimpleQueue[Any] = SimpleQueue()
    working = threading.Lock()

    def send(kind: Reply, value: Any) -> None:
        try:
            pickle.dump((kind, value), replies, pickle.HIGHEST_PROTOCOL)
            replies.flush()
        except OSError:  # nobody reads
            os._exit(1)

    def read() -> None:
        with suppress(EOFError, OSError):
            while True:
                requests.put(pickle.load(sys.stdin.buffer))
        if working.locked():
            os._exit(1)
        requests.put(None)

    threading.Thread(target=read, daemon=True).start()
    child = Child(lambda progress: send(Reply.PROGRESS, progress))
    with spelled_by(as_mark):
        while (request := requests.get()) is not None:
            with working:
                folder, method, arguments = request
                try:
                    os.chdir(folder)
                    found = getattr(child, method)(*arguments)
                except Exception as error:
                    error.add_note("".join(traceback.format_exception(error)))
                    send(Reply.FAILED, _portable(error))
                else:
                    send(Reply.DONE, found)
        child.close()
