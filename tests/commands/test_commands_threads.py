"""Two calls in two threads do not know of each other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

from producers import small_network
from results import without_times

import qdebug
from qdebug.backends.stream import map_in_order
from qdebug.config.compare import CompareSettings
from qdebug.config.engine import EngineSettings
from qdebug.config.shared import ClusterSettings
from qdebug.types import Progress
from qdebug.wording import option, spelled_by

DATA = "calib_data/"
PLAIN: dict[str, Any] = {"inputs": DATA + "digits_holdout.npz", "samples": 16, "cache": False}


def other_settings(folder: Path) -> dict[str, Any]:
    """A value for every setting of a comparison that can be combined, none the default."""
    return {
        "inputs": DATA + "digits_holdout.npz",
        "precision": "int8",
        "fallback_precision": "fp16",
        "weights": "per-tensor",
        "calib_data": DATA + "digits_calib.npz",
        "method": "minmax",
        "samples": 12,
        "calib_samples": 9,
        "batch_size": 3,
        "metric": "top1",
        "fp16_kernels": "exact",
        "cache": False,
        "local_samples": 5,
        "pin": ["op:Gemm"],
        "shape": ["input:3x1x8x8"],
        "effect": "exact",
        "group": "labels",
        "try_remedies": True,
        "memory_budget": 1 << 26,
        "fail_on": ["output.cosine>=0.999999"],
        "allow_unquantized": True,
        "output": str(folder / "run.h5"),
        "keep": "worst:1",
        "save_plan": str(folder / "plan.yaml"),
        "html": str(folder / "page.html"),
        "force": True,
    }


FOR_OTHER_DATA = {"preprocess", "skip_bad", "decode"}
"""Of pictures, and of metrics that have boxes or text to read."""
NOT_COMBINED = {
    *("model", "plan", "calibration", "reference", "framework", "custom_op_library"),
    "block_size",
    *FOR_OTHER_DATA,
}
"""Given besides, of a quantized model, of other precisions, or in tests of their own."""


def compared(model: Path, progress: Any = None, **settings: Any) -> dict[str, Any]:
    return without_times(qdebug.compare(model, progress=progress, **settings).to_dict())


def test_every_setting_is_tried(tmp_path: Path) -> None:
    of_others = {f.name for kind in (EngineSettings, ClusterSettings) for f in fields(kind)}
    settings = {f.name for f in fields(CompareSettings)} - of_others
    assert settings == other_settings(tmp_path).keys() | NOT_COMBINED


def test_two_comparisons_at_once(tmp_path: Path) -> None:
    """The second one begins while the first runs, and waits until it is done."""
    model = small_network(tmp_path)
    folders = [tmp_path / name for name in ("alone", "beside")]
    for folder in folders:
        folder.mkdir()
    alone = compared(model, **PLAIN), compared(model, **other_settings(folders[0]))
    first_runs, second_runs, first_is_done = (threading.Event() for _ in range(3))

    def hold_first(_: Progress) -> None:
        first_runs.set()
        assert second_runs.wait(60)

    def hold_second(_: Progress) -> None:
        second_runs.set()
        assert first_is_done.wait(60)

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(compared, model, hold_first, **PLAIN)
        one.add_done_callback(lambda _: first_is_done.set())
        assert first_runs.wait(60)
        other = pool.submit(compared, model, hold_second, **other_settings(folders[1]))
        found = one.result(), other.result()
    assert found[0] == alone[0]
    assert {**found[1], "run_file": None} == {**alone[1], "run_file": None}
    written, expected = ((folder / "plan.yaml").read_text() for folder in folders)
    assert written == expected


def test_settings_are_spelled_as_the_caller_does() -> None:
    """In the threads that do its work as well, and in no others."""
    with spelled_by(lambda name, _: f"--{name}"), ThreadPoolExecutor(1) as beside:
        assert list(map_in_order(option, ["samples"] * 3, 2)) == ["--samples"] * 3
        assert beside.submit(option, "samples").result() == "samples"
    assert option("samples") == "samples"
