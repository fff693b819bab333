"""TensorRT in a process of its own: what ends the library's process is an error of its request.

There is one process for each library, and for each side of what TensorRT for RTX reads from the
environment once. It starts with the first request, and anew with the next one after it has ended;
sessions that were open in it are opened again.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx

from qdebug.backends.base import Session
from qdebug.backends.engine import BuiltEngine, CaptureWay, Shape
from qdebug.backends.tensorrt.backend import open_runtime
from qdebug.backends.tensorrt.child import Opening, OpenSession, Reply
from qdebug.backends.tensorrt.library import LibraryKind
from qdebug.engine_info.measurements import LayerTime
from qdebug.errors import BackendError, QdebugError
from qdebug.types import Feeds, ProgressCallback, Skipped, Tensors, TensorSpec, ignore_progress
from qdebug.wording import option

_CODE = "import sys; sys.path[:] = {!r}; from qdebug.backends.tensorrt import child; child.main()"
_SHOWN_LINES, _SHOWN_CHARACTERS, _LOG_LINES, _LOG_BYTES = 3, 300, 60, 1 << 16
_END_S = 20.0
_MARK = re.compile(r"⟦(\w+)(?:=(.*?))?⟧")

_TF32 = "NVIDIA_TF32_OVERRIDE"
"""TensorRT for RTX computes FP32 in TF32 whatever BuilderFlag.TF32 says, unless this variable is 0
when an engine is built and when the process executes its first one. Seen with 1.6.1 on an H100, a
CNN against FP32 on the CPU: 66 dB with the flag and without it, 119 dB with the variable."""


class Process:
    """One process. Requests of several threads take turns."""

    def __init__(self, what: str, environment: Mapping[str, str | None]) -> None:
        """Starts nothing yet.

        Args:
            what: runs in it, for messages, such as "tensorrt-rtx"; its version, once it is known.
            environment: variables that it has besides this one's; None takes one away.
        """
        self.what, self.starts, self.turn = what, 0, threading.RLock()
        self._environment = environment
        self._forgotten: list[tuple[int, int]] = []
        self._end: Callable[[], object] = _nothing
        self._running: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def ask(
        self,
        method: str,
        *arguments: Any,
        doing: str = "",
        progress: ProgressCallback = ignore_progress,
        limit_s: float | None = None,
    ) -> Any:
        """What a method of Child gives.

        Args:
            doing: what it does, for the message where the process does not survive it.
            limit_s: the process is ended where it takes longer.

        Raises:
            BackendError: the process has died, or is ended.
            QdebugError: the method's own.
        """
        with self.turn:
            running = self._started()
            over = threading.Event()

            def stop() -> None:
                over.set()
                running.kill()

            timer = threading.Timer(limit_s or 0, stop)
            if limit_s is not None:
                timer.start()
            try:
                self._free_forgotten(running)
                kind, value = _exchanged(running, (Path.cwd(), method, arguments), progress)
            except (EOFError, OSError, pickle.UnpicklingError) as cut:
                raise self._death(doing, limit_s if over.is_set() else None) from cut
            except BaseException:  # Ctrl-C, or the callback's own: half a reply is in the pipe
                self.kill()
                raise
            finally:
                timer.cancel()
        if kind is Reply.FAILED:
            error: Exception = _spelled(value)
            raise error
        return value

    def holds(self, start: int) -> bool:
        """Whether what was opened after so many starts is still open."""
        running = self._running
        return start == self.starts and running is not None and running.poll() is None

    def kill(self) -> None:
        """End it, whatever it does."""
        if self._running is not None:
            self._running.kill()
            self._running.wait()

    def forget(self, start: int, number: int) -> None:
        """Have a session that was opened after so many starts closed before the next request."""
        self._forgotten.append((start, number))

    def _free_forgotten(self, running: subprocess.Popen[bytes]) -> None:
        numbers = [number for start, number in self._forgotten if start == self.starts]
        self._forgotten.clear()
        if numbers:
            _exchanged(running, (Path.cwd(), "close", tuple(numbers)), ignore_progress)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._running is not None and self._log is not None and self._running.poll() is None:
            self._log.truncate(0)  # the log is of one request
            self._log.seek(0)  # of both processes: they share the place
            return self._running
        self._end()
        self._log = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (it ends with the process)
        code = _CODE.format(sys.path)
        self._running = subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={k: x for k, x in (os.environ | self._environment).items() if x is not None},
        )
        self.starts += 1
        self._end = weakref.finalize(self, _end, self._running, self._log)
        return self._running

    def _death(self, doing: str, limit_s: float | None) -> BackendError:
        assert self._running is not None and self._log is not None
        self._running.kill()  # what cannot be read any more has not always ended
        how = _ending(self._running.wait())
        end = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, end - _LOG_BYTES))
        lines = self._log.read().decode(errors="replace").split("\n")[-_LOG_LINES:]
        said = " / ".join(x.strip() for x in [x for x in lines if x.strip()][-_SHOWN_LINES:])
        last = f". The last that it said: {said[-_SHOWN_CHARACTERS:]}" if said else ""
        if limit_s is not None:
            error = BackendError(
                f"{self.what} was stopped after {limit_s:g} s while it {doing}{last}",
                f"Give it more time ({option('build_timeout')}), or a lower optimization level.",
                code="QD-BACKEND-BUILD-TIMEOUT",
            )
        else:
            error = BackendError(
                f"the process of {self.what} ended ({how}) while it {doing}{last}",
                "This is a defect of the library, or memory ran out: try another version, or keep "
                "layers in another precision. What was measured before is kept: the same command "
                "goes on there.",
                code="QD-BACKEND-PROCESS-DIED",
            )
        error.add_note("\n".join(lines))
        return error


def _nothing() -> None:
    """There is nothing to end."""


def _end(running: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    """Let it close what is open, and end."""
    for pipe in (running.stdin, running.stdout):
        assert pipe is not None
        try:
            pipe.close()
        except OSError:  # it has died with a request in the pipe
            continue
    try:
        running.wait(_END_S)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()
    log.close()


def _exchanged(
    running: subprocess.Popen[bytes], request: tuple[Path, str, Any], progress: ProgressCallback
) -> tuple[Reply, Any]:
    assert running.stdin is not None and running.stdout is not None
    pickle.dump(request, running.stdin, pickle.HIGHEST_PROTOCOL)
    running.stdin.flush()
    while True:
        kind, value = pickle.load(running.stdout)
        if kind is not Reply.PROGRESS:
            return kind, value
        progress(value)


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _spelled(error: Exception) -> Exception:
    """`error`, with settings spelled as this process's user knows them."""
    if isinstance(error, QdebugError):
        error.message, error.hint = (
            _MARK.sub(lambda found: option(found[1], found[2]), text)
            for text in (error.message, error.hint)
        )
    return error


_processes: weakref.WeakValueDictionary[tuple[str, bool], Process] = weakref.WeakValueDictionary()


def process_of(kind: LibraryKind, *, tf32: bool = False) -> Process:
    """The process of a library, which lives as long as somebody holds it."""
    rtx = kind is LibraryKind.RTX
    environment = {_TF32: None if tf32 else "0"} if rtx else {}
    key = kind, rtx and tf32
    process = _processes.get(key)
    if process is None:
        process = _processes[key] = Process(str(kind), environment)
    return process


@dataclass(frozen=True)
class IsolatedRuntime:
    """An EngineRuntime whose work is done in a process of its own. See EngineRuntime."""

    name: str
    label: str
    provider_name: str | None
    built_for: str
    target: str
    device_name: str
    not_run: str
    typing: str
    ways: tuple[CaptureWay, ...]
    keeps: bool
    opening: Opening = field(repr=False)
    process: Process = field(repr=False)
    progress: ProgressCallback = field(default=ignore_progress, repr=False)
    limit_s: float | None = None

    def start(self) -> None:
        """See EngineRuntime."""
        self._ask("start", "acquired the GPU")

    def fitted(
        self, inputs: Sequence[TensorSpec], shapes: Sequence[Mapping[str, Shape]]
    ) -> IsolatedRuntime:
        """See EngineRuntime."""
        distinct = {tuple(sorted(one.items())): one for one in shapes}
        fitting = self._changed("fitted", tuple(inputs), tuple(distinct.values()))
        self.process.ask("describe", fitting.opening, doing="looked at the shapes")
        return fitting

    def anew(self) -> IsolatedRuntime:
        """See EngineRuntime."""
        return replace(self._changed("anew"), keeps=False)

    def check(self, proto: onnx.ModelProto) -> None:
        """See EngineRuntime."""
        self._ask("check", _doing("parsed", proto), proto)

    def key(self, proto: onnx.ModelProto) -> str:
        """See EngineRuntime."""
        return str(self._ask("key", _doing("looked at", proto), proto))

    def build(self, proto: onnx.ModelProto) -> BuiltEngine:
        """See EngineRuntime."""
        built: BuiltEngine = self._ask("build", _doing("built an engine of", proto), proto)
        return built

    def clean(self, proto: onnx.ModelProto, built: BuiltEngine | None = None) -> IsolatedSession:
        """See EngineRuntime."""
        return IsolatedSession(self, "clean", proto, (built,))

    def open(
        self,
        proto: onnx.ModelProto,
        capture: Sequence[str],
        way: CaptureWay | None = None,
        group_bytes: int | None = None,
    ) -> Session:
        """See EngineRuntime."""
        return IsolatedSession(self, "open", proto, (tuple(capture), way, group_bytes))

    def opened(self, method: str, proto: onnx.ModelProto, more: tuple[Any, ...]) -> OpenSession:
        """The session that a method gives, in the process."""
        doing = _doing("built or loaded an engine of", proto)
        found: OpenSession = self._ask(method, doing, proto, *more, request="open")
        return found

    def _changed(self, method: str, *arguments: Any) -> IsolatedRuntime:
        changes = (*self.opening.changes, (method, arguments))
        return replace(self, opening=replace(self.opening, changes=changes))

    def _ask(self, method: str, doing: str, *arguments: Any, request: str = "call") -> Any:
        return self.process.ask(
            request,
            self.opening,
            method,
            arguments,
            doing=doing,
            progress=self.progress,
            limit_s=self.limit_s,
        )


class IsolatedSession:
    """A session in the process of its runtime, where it is opened again once that has died. See
    EngineSession."""

    def __init__(
        self,
        runtime: IsolatedRuntime,
        method: str,
        proto: onnx.ModelProto,
        more: tuple[Any, ...],
    ) -> None:
        """Opens it; `method` of the runtime does, with the model and `more`."""
        self._runtime, self._made_by = runtime, (method, proto, more)
        self._closed = self._running = False
        self._open()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and hasattr(self, "_session"):
            self._runtime.process.forget(self._start, self._session.number)

    @property
    def dtypes(self) -> Mapping[str, np.dtype[np.generic]]:
        """See Session."""
        return self._session.dtypes

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """See Session."""
        return self._session.skipped

    def run(self, feeds: Feeds) -> Tensors:
        """See Session."""
        found: Tensors = self._ask("run", {**feeds})
        return found

    def latency_ms(self, feeds: Feeds) -> float:
        """See EngineSession."""
        return float(self._ask("latency_ms", {**feeds}))

    def layer_times(self, feeds: Feeds) -> tuple[LayerTime, ...]:
        """See EngineSession."""
        found: tuple[LayerTime, ...] = self._ask("layer_times", {**feeds})
        return found

    def interrupt(self) -> None:
        """See Interruptible: ends the process if it executes this session."""
        if self._running:
            self._runtime.process.kill()

    def close(self) -> None:
        """See Session."""
        process = self._runtime.process
        if not self._closed and process.holds(self._start):
            process.ask("close", self._session.number, doing="freed an engine")
        self._closed = True

    def _open(self) -> None:
        self._session = self._runtime.opened(*self._made_by)
        self._start = self._runtime.process.starts

    def _ask(self, method: str, *arguments: Any) -> Any:
        if self._closed:
            raise BackendError("the session is closed", code="QD-BACKEND-CLOSED")
        process = self._runtime.process
        with process.turn:
            if not process.holds(self._start):
                self._open()
            self._running = True
            try:
                doing = _doing("executed an engine of", self._made_by[1])
                return process.ask("run", self._session.number, method, arguments, doing=doing)
            finally:
                self._running = False


def _doing(verb: str, proto: onnx.ModelProto) -> str:
    """What is done to a model, which precisions its pairs and Casts ask for."""
    kinds = {x.name: x.data_type for x in proto.graph.initializer}
    asked = {a.i for n in proto.graph.node if n.op_type == "Cast" for a in n.attribute}
    for node in proto.graph.node:
        if node.op_type == "QuantizeLinear":
            asked.update(kinds[name] for name in node.input[2:] if name in kinds)
    names = [onnx.TensorProto.DataType.Name(kind) for kind in sorted(asked - {_FLOAT})]
    return f"{verb} '{proto.graph.name}' ({', '.join(names) or 'FLOAT'})"


_FLOAT = onnx.TensorProto.FLOAT


def open_rtx(**settings: Any) -> IsolatedRuntime:
    """TensorRT for RTX; see `backend.open_runtime`."""
    return _opened(LibraryKind.RTX, **settings)


def open_classic(**settings: Any) -> IsolatedRuntime:
    """TensorRT 10 or 11; see `backend.open_runtime`."""
    return _opened(LibraryKind.CLASSIC, **settings)


def _opened(
    kind: LibraryKind,
    *,
    progress: ProgressCallback = ignore_progress,
    build_timeout: float | None = None,
    **settings: Any,
) -> IsolatedRuntime:
    process = process_of(kind, tf32=settings.get("tf32", False))
    opening = Opening(open_runtime, {"kind": kind, **settings})
    shown = process.ask("describe", opening, doing="loaded the library")
    process.what = shown["label"]
    return IsolatedRuntime(
        **shown, opening=opening, process=process, progress=progress, limit_s=build_timeout
    )
