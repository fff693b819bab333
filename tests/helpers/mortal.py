"""A runtime that ends its process, hangs or raises where it is told to, for use in a child."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from qdebug.backends.tensorrt.build.logger import LOG
from qdebug.errors import UsageError
from qdebug.types import Progress
from qdebug.wording import option


class Mortal:
    """An EngineRuntime, as far as a child asks for one, and its own session.

    Args:
        at: the method in which it happens, once.
        how: "segfault", "exit", "hang", "usage" or "foreign".
        mark: a file that says it has happened.
    """

    name = label = built_for = target = device_name = not_run = typing = "mortal"
    provider_name, ways, keeps = None, (), True
    dtypes: ClassVar = {"y": np.dtype(np.float32)}
    skipped = ()

    def __init__(self, at: str, how: str, mark: str, progress: Any, **_: Any) -> None:
        self._at, self._how, self._mark, self._progress = at, how, Path(mark), progress
        self._reached("describe")

    def fitted(self, inputs: Any, shapes: Any) -> Mortal:
        self._reached("fitted")
        return self

    def check(self, proto: Any) -> None:
        self._reached("check")

    def build(self, proto: Any) -> int:
        self._progress(Progress("build", 50, 100))
        self._reached("build")
        return os.getpid()

    def clean(self, proto: Any, built: Any = None) -> Mortal:
        self._reached("open")
        return self

    def run(self, feeds: Any) -> Any:
        self._reached("run")
        return {"y": feeds["x"] * 2}

    def latency_ms(self, feeds: Any) -> float:
        self._reached("latency_ms")
        return 1.5

    def close(self) -> None:
        with self._mark.with_suffix(".closed").open("a") as file:
            file.write("closed\n")

    def _reached(self, place: str) -> None:
        if place != self._at or self._mark.exists():
            return
        self._mark.touch()
        print("printed past every logger", flush=True)
        LOG.debug("about to tune the third layer")
        if self._how == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self._how == "exit":
            sys.stderr.write("assertion failed\n")
            os._exit(7)
        if self._how == "hang":
            time.sleep(600)
        if self._how == "usage":
            raise UsageError(f"{option('workspace', '4G')} is odd", f"Drop {option('workspace')}.")
        raise LookupError("of the library")
