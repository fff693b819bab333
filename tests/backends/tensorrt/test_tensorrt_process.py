"""A library in a process of its own, which may die at any time."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mortal as mortal_runtime
import numpy as np
import onnx
import pytest

from qdebug.backends.tensorrt import process
from qdebug.backends.tensorrt.library import LibraryKind
from qdebug.backends.tensorrt.process import IsolatedRuntime, open_rtx, process_of
from qdebug.errors import BackendError, UsageError
from qdebug.types import Progress
from qdebug.wording import spelled_by

X = np.arange(3, dtype=np.float32)
Mortal = Callable[..., IsolatedRuntime]
STAGES = ("describe", "fitted", "check", "build", "open", "run", "latency_ms")


@pytest.fixture
def mortal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mortal:
    """`mortal(at, how)`: a runtime that ends its process once."""
    monkeypatch.setattr(process, "open_runtime", mortal_runtime.Mortal)
    monkeypatch.setattr(process, "_processes", weakref.WeakValueDictionary())

    def opened(at: str = "", how: str = "", **settings: Any) -> IsolatedRuntime:
        return open_rtx(at=at, how=how, mark=str(tmp_path / "mark"), **settings)

    return opened


def model() -> onnx.ModelProto:
    """With an operator that rounds to INT8, and one in FP16."""
    text = """<ir_version: 8, opset_import: ["": 13]>
    plate (float[3] x) => (float16[3] y) <float scale = {0.5}, int8 zero = {0}> {
        q = QuantizeLinear(x, scale, zero)
        d = DequantizeLinear(q, scale, zero)
        y = Cast<to = 10>(d)
    }"""
    return onnx.parser.parse_model(text)


def reach(opened: Mortal, stage: str, **settings: Any) -> Any:
    """Go through all stages to `stage`, and give what the last one does."""
    runtime = opened(**settings)
    runtime = runtime.fitted((), ())
    runtime.check(model())
    runtime.build(model())
    session = runtime.clean(model())
    return session.latency_ms({"x": X}) if stage == "latency_ms" else session.run({"x": X})


@pytest.mark.parametrize("stage", STAGES)
def test_a_death_at_any_stage_is_an_error_and_the_next_request_is_answered(
    mortal: Mortal, stage: str
) -> None:
    with pytest.raises(BackendError) as caught:
        reach(mortal, stage, at=stage, how="segfault")
    error = caught.value
    assert (error.exit_code, error.code) == (3, "QD-BACKEND-PROCESS-DIED")
    assert "SIGSEGV" in error.message and "about to tune the third layer" in error.message
    assert any("printed past every logger" in note for note in error.__notes__)
    if stage not in ("describe", "fitted"):
        assert "'plate' (INT8, FLOAT16)" in error.message
        assert "mortal" in error.message
    assert reach(mortal, "run")["y"].tolist() == [0, 2, 4]


def test_the_code_that_it_exits_with(mortal: Mortal) -> None:
    with pytest.raises(BackendError, match=r"exit code 7.*assertion failed"):
        reach(mortal, "build", at="build", how="exit")


def test_sessions_are_opened_again(mortal: Mortal) -> None:
    runtime = mortal()
    one, two = (runtime.clean(model()) for _ in range(2))
    runtime.process.kill()
    for session in (two, one):
        assert session.run({"x": X})["y"].tolist() == [0, 2, 4]
    runtime.process.kill()
    one.close()  # nothing of it is left
    with pytest.raises(BackendError, match="closed"):
        one.run({"x": X})
    assert two.run({"x": X})["y"].tolist() == [0, 2, 4]


def test_a_build_is_ended_by_its_limit(mortal: Mortal) -> None:
    began = time.monotonic()
    with pytest.raises(BackendError) as caught:
        reach(mortal, "build", at="build", how="hang", build_timeout=2.0)
    assert time.monotonic() - began < 60
    assert (caught.value.exit_code, caught.value.code) == (3, "QD-BACKEND-BUILD-TIMEOUT")
    assert "2 s" in caught.value.message and "build_timeout" in caught.value.hint
    assert reach(mortal, "run")["y"].tolist() == [0, 2, 4]


def test_ctrl_c_ends_it(mortal: Mortal) -> None:
    runtime = mortal("build", "hang")
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        runtime.build(model())
    assert not runtime.process.holds(1)
    assert runtime.build(model())


def test_an_error_of_the_progress_comes_through(mortal: Mortal) -> None:
    def fail(step: Progress) -> None:
        raise LookupError("the callback's own")

    with pytest.raises(LookupError, match="the callback's own"):
        mortal(progress=fail).build(model())


def test_an_interrupted_session_ends_what_it_executes(mortal: Mortal) -> None:
    session = mortal("run", "hang").clean(model())
    session.interrupt()  # it executes nothing yet
    threading.Timer(1.0, session.interrupt).start()
    with pytest.raises(BackendError) as caught:
        session.run({"x": X})
    assert caught.value.code == "QD-BACKEND-PROCESS-DIED"


def test_errors_are_spelled_as_here(mortal: Mortal) -> None:
    with (
        spelled_by(lambda name, value: f"--{name} {value or ''}".strip()),
        pytest.raises(UsageError) as caught,
    ):
        mortal("check", "usage").check(model())
    assert caught.value.message == "--workspace 4G is odd" and "--workspace" in caught.value.hint
    assert "⟦" not in str(caught.value)


def test_a_foreign_error_has_its_traceback(mortal: Mortal) -> None:
    with pytest.raises(LookupError, match="of the library") as caught:
        mortal("check", "foreign").check(model())
    assert any("mortal.py" in note for note in caught.value.__notes__)


def test_a_forgotten_session_is_closed(mortal: Mortal, tmp_path: Path) -> None:
    runtime, closed = mortal(), tmp_path / "mark.closed"
    session = runtime.clean(model())
    del session
    gc.collect()
    runtime.check(model())
    assert closed.read_text() == "closed\n"
    left = runtime.clean(model())
    del runtime, left
    gc.collect()  # with the process
    assert closed.read_text() == "closed\nclosed\n"


def test_one_process_for_each_library(monkeypatch: pytest.MonkeyPatch) -> None:
    rtx, classic = LibraryKind.RTX, LibraryKind.CLASSIC
    held = process_of(rtx), process_of(classic), process_of(rtx, tf32=True)
    assert len(set(map(id, held))) == 3 and process_of(rtx) is held[0]
    assert process_of(classic, tf32=True) is held[1]


@pytest.mark.parametrize(("tf32", "value"), [(False, "0"), (True, None)])
def test_what_tensorrt_for_rtx_reads_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tf32: bool, value: str | None
) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    monkeypatch.setattr(process, "_processes", weakref.WeakValueDictionary())
    one = process_of(LibraryKind.RTX, tf32=tf32)
    assert one.ask("function", os.getenv, ("NVIDIA_TF32_OVERRIDE",)) == value


ORPHAN = """
import os, sys, threading
from qdebug.backends.tensorrt import process
from mortal import Mortal
process.open_runtime = Mortal
runtime = process.open_rtx(at="build", how="hang", mark=sys.argv[1])
print(runtime.process.ask("function", os.getpid, ()), flush=True)
threading.Timer(1.0, lambda: os._exit(1)).start()
import onnx
runtime.build(onnx.ModelProto())
"""


def test_it_does_not_outlive_who_asks(tmp_path: Path) -> None:
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", ORPHAN, str(tmp_path / "mark")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": path}
    )
    number = int(done.stdout)
    ends = time.monotonic() + 20
    while _runs(number) and time.monotonic() < ends:
        time.sleep(0.1)
    assert not _runs(number)


def _runs(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
