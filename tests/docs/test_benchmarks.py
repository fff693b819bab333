"""Every benchmark runs, on the smallest of everything, and says what it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from documents import REPOSITORY

BENCH = REPOSITORY / "scripts" / "bench"
DATA = REPOSITORY / "calib_data"
ARGUMENTS = {
    "bench_backends": "--nets digits_cnn --samples 4 --backends onnxruntime openvino",
    "bench_commands": "--nets digits_cnn --samples 8 --rounds 1 --only calibrate",
    "bench_diagnosis": "--nets digits_cnn --samples 2 --kinds plans --development --effect none",
    "bench_effect": "--nets digits_cnn --samples 16",
    "bench_formats": "--nets digits_cnn --samples 4",
    "bench_gpu_formats": "--compute-capability 8.9 --nets digits_cnn --precisions fp8 --samples 2",
    "bench_providers": "--providers CPU --nets digits_cnn --samples 2",
    "bench_strangers": f"--packages --also {DATA}/digits_cnn.onnx --samples 2 "
    "--forms qdq --commands compare report",
    "bench_unseen": "--nets digits_cnn --samples 8",
}
SHOWS = {
    "bench_backends": ["| digits_cnn | onnxruntime |", "| 14 of 14 |"],
    "bench_commands": ["| digits_cnn | floor of `compare` |", "| digits_cnn | `calibrate` |"],
    "bench_diagnosis": ["15 faults planted", "Healthy networks"],
    "bench_effect": ["| digits_cnn | 14 | 16 |"],
    "bench_formats": ["| network | INT8 | FP8 | A16W8 | BF16 | FP16 |", "| digits_cnn | 1.000, "],
    "bench_gpu_formats": ["digits_cnn fp8: built; 0 not as planned"],
    "bench_providers": ["fp32_db: inf", "tensors: 32"],
    "bench_strangers": ["| qdq | 1 | 1 done |"],
    "bench_unseen": ["| digits_cnn | FP32 | 1.000 |", "| weights alone | ", "| best calibrator | "],
}


OWN_WORKERS = ("bench_diagnosis",)
"""They pickle what they define between processes, which a forked program cannot."""


def _run(name: str, *arguments: str) -> str:
    program = [str(BENCH / f"{name}.py"), *arguments]
    if name in OWN_WORKERS:
        words = [sys.executable, *program]
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, cwd=REPOSITORY, timeout=500
        )
    else:
        done = forked.run(program, cwd=REPOSITORY, timeout=500)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_benchmark_is_listed() -> None:
    assert {path.stem for path in BENCH.glob("bench_*.py")} == {*ARGUMENTS}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_benchmark_measures(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if name == "bench_strangers":  # it keeps what it made, for the next run
        monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    if name == "bench_gpu_formats":
        pytest.importorskip("tensorrt_rtx", reason="needs TensorRT for RTX")
    said = _run(name, *ARGUMENTS[name].split())
    assert "failed" not in said
    for text in SHOWS[name]:
        assert text in said


HELP = """
import runpy, sys
from contextlib import suppress
for path in sys.argv[1:]:
    sys.argv = [path, "--help"]
    with suppress(SystemExit):
        runpy.run_path(path, run_name="__main__")
"""


def test_a_benchmark_says_what_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process: what they import takes longest."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), str(BENCH)]))
    paths = [str(BENCH / f"{name}.py") for name in ARGUMENTS]
    done = forked.run(["-c", HELP, *paths])
    assert done.returncode == 0, done.stderr
    for name in ARGUMENTS:
        assert f"usage: {name}.py" in done.stdout
        assert f"scripts/bench/{name}.py" in done.stdout
