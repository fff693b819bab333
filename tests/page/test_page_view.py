"""`qdebug view` as a program, and its page in a real browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from browser import missing, opened
from patience import PATIENCE_S

import qdebug
from qdebug.outputfiles import PartialFile

DATA = Path(__file__).parents[2] / "calib_data"
needs_browser = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _compared(tmp_path_factory.mktemp("view") / "run.h5", "per-tensor")


def _compared(path: Path, weights: str) -> Path:
    samples = {"inputs": DATA / "digits_holdout.npz", "samples": 12, "keep": "all"}
    qdebug.compare(DATA / "digits_cnn.onnx", weights=weights, output=path, force=True, **samples)
    return path


@contextmanager
def _started(*arguments: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The program, and the address that it prints."""
    command = [sys.executable, "-m", "qdebug", *map(str, arguments)]
    environment = {**os.environ, "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    program = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert program.stdout is not None
        line = program.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/[\w-]+/", line)
        assert found, (line, program.stderr and program.stderr.read())
        yield program, found[0]
    finally:
        program.kill()
        program.communicate()


def _until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.1)


def _text(address: str) -> str:
    with urlopen(address, timeout=PATIENCE_S) as answer:
        found: str = answer.read().decode()
        return found


def test_ctrl_c_ends_it(run: Path) -> None:
    with _started("view", run, "--port", "0", "--no-browser") as (program, address):
        assert json.loads(_text(f"{address}status"))["progress"] == ""
        assert '"served":true' in _text(address)
        program.send_signal(signal.SIGINT)
        assert program.wait(20) == 0


@needs_browser
def test_any_sample_and_channel(chromium: Any, run: Path) -> None:
    with (
        _started("view", run, "--no-browser") as (_, address),
        opened(chromium, address) as watched,
    ):
        page = watched.page
        sample = page.locator("#activations").get_by_label("Sample").first
        sample.wait_for()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        values = [o.get_attribute("value") for o in sample.locator("option").all()]
        sample.select_option(values[-1])
        page.wait_for_timeout(500)
        assert any(f"sample={values[-1]}" in url for url in asked), asked
        watched.quiet()


@needs_browser
def test_a_replaced_file_is_shown_anew(chromium: Any, run: Path, tmp_path: Path) -> None:
    file = Path(shutil.copy(run, tmp_path / "run.h5"))
    other = _compared(tmp_path / "other.h5", "per-channel")
    with (
        _started("view", file, "--no-browser") as (_, address),
        opened(chromium, address) as watched,
    ):
        before = watched.page.locator("#layers .tabulator-row").first.inner_text()
        other.replace(file)
        watched.page.wait_for_function(
            "before => { const row = document.querySelector('#layers .tabulator-row');"
            " return row && row.innerText !== before; }",
            arg=before,
        )
        assert watched.page.locator("#layers .tabulator-row").first.inner_text() != before
        # What was asked for of the file that is gone, while it was replaced, is refused.
        watched.faults = [fault for fault in watched.faults if "409 (Conflict)" not in fault]
        watched.quiet()


def test_a_run_that_is_still_being_written(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "run.h5"
    partial = PartialFile(target)
    with _started("view", target, "--no-browser") as (_, address):
        first = json.loads(_text(f"{address}status"))["version"]
        assert '"unfinished":true' in _text(address)
        shutil.copy(run, partial.path)
        partial.publish(force=False)
        assert json.loads(_text(f"{address}status"))["version"] != first
        assert '"unfinished":false' in _text(address)


def test_what_a_killed_run_left_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / ".run.h5.partial").touch()
    with pytest.raises(qdebug.StoreError) as caught:
        qdebug.view(tmp_path / "run.h5", browser=False)
    assert caught.value.code == "QD-STORE-NOT-FOUND"


def test_compare_serves_what_it_writes(tmp_path: Path) -> None:
    samples = ["--inputs", DATA / "digits_holdout.npz", "--samples", "8"]
    output = ["-o", tmp_path / "run.h5", "--view"]
    with _started("compare", DATA / "digits_cnn.onnx", *samples, *output) as (program, address):
        assert '"served":true' in _text(address)
        _until(lambda: '"unfinished":false' in _text(address))
        program.send_signal(signal.SIGINT)
        assert program.wait(20) == 0


def test_an_engine_s_files_are_shown_together(tmp_path: Path) -> None:
    gpu = {"Name": "a GPU", "ComputeCapability": [8, 0]}
    files = {
        "layers.json": {"Layers": [{"Name": "a", "LayerType": "gemm"}]},
        "profile.json": [{"count": 1}, {"name": "a", "averageMs": 0.25}],
        "times.json": [{"computeMs": 0.5}],
        "metadata.json": [gpu],
    }
    for name, document in files.items():
        (tmp_path / name).write_text(json.dumps(document))
    written = [tmp_path / name for name in files]
    with qdebug.view(written, browser=False) as served:
        text = _text(served.url)
    assert qdebug.report(written, output=tmp_path / "page.html").runs[0].label == "layers.json"
    assert text.count('"kind":"inspect"') == 1
    assert '"time_ms":0.25' in text and '"compute_ms":0.5' in text and '"name":"a GPU"' in text


@pytest.mark.parametrize(
    ("name", "kind"), [("digits_cnn.onnx", "inspect"), ("result.json", "compare")]
)
def test_what_else_can_be_shown(run: Path, tmp_path: Path, name: str, kind: str) -> None:
    file: Any = DATA / name
    if name == "result.json":
        file = tmp_path / name
        with qdebug.load_run(run) as found:
            file.write_text(json.dumps(found.to_dict()))
    with qdebug.view(file, browser=False) as served:
        text = _text(served.url)
    assert f'"kind":"{kind}"' in text and '"nodes":[{' in text
