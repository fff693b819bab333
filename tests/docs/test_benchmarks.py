"""Every benchmark runs, on the smallest of everything, and says what it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from browser import missing
from documents import REPOSITORY

BENCH = REPOSITORY / "scripts" / "bench"
DATA = REPOSITORY / "calib_data"
TINY = f"--nets {REPOSITORY}/tests/producers/fp32.onnx --inputs {DATA}/digits_holdout.npz"
SMALL = "--nets digits_cnn --samples 4 --rounds 1"
ARGUMENTS = {
    "bench_audit": "--nets conv-2to8-k1-on1 product-1-3-5-7 --plans int8 int8+fp16 fp16",
    "bench_backends": "--nets digits_cnn --samples 4 --backends onnxruntime openvino",
    "bench_calibrate": f"{TINY} --samples 4 --rounds 1 --peer",
    "bench_calibrators": "--sizes 1000 --rounds 1",
    "bench_candidates": f"{SMALL} --workers 1",
    "bench_changes": "--nets digits_cnn --samples 8 --ways by-noise last-step --without ranges "
    "--never least-squares",
    "bench_check": "--nets digits_cnn",
    "bench_cluster": "--net digits_cnn --samples 16 --rounds 1 --workers 1 --commands compare",
    "bench_compare": f"{SMALL} --keep none all/float16",
    "bench_cures": "--nets digits_cnn --samples 4 --assets /nowhere",
    "bench_diagnosis": "--nets digits_cnn --samples 2 --kinds plans --development --effect none",
    "bench_effect": "--nets digits_cnn --samples 16",
    "bench_effect_cost": "--layers 4",
    "bench_effect_draws": "--nets digits_cnn",
    "bench_formats": "--nets digits_cnn --samples 4",
    "bench_fp16": SMALL,
    "bench_gpu_formats": "--compute-capability 8.9 --nets digits_cnn --precisions fp8 --samples 2",
    "bench_large": "--nets W3 --samples 4 --seconds 1 --commands inspect export floor",
    "bench_parts": "--nets digits_cnn --samples 4",
    "bench_pictures": f"{DATA}/digits_cnn.onnx --pictures 4 --rounds 1",
    "bench_prefix_cache": f"{SMALL} --target output.sqnr_db>=20",
    "bench_providers": "--providers CPU --nets digits_cnn --samples 2",
    "bench_producers": "--samples 16 --only nncf dynamic",
    "bench_repair": "--nets digits_cnn --tools ort-minmax only-smoothing --samples 8",
    "bench_repair_cost": "--nets digits_cnn --calib 8 --samples 8 --only bias-correction",
    "bench_report": "--nets digits_cnn --rounds 1",
    "bench_screening": "--nets cnn --seeds 1 --samples 2 --blocks 3",
    "bench_strangers": f"--packages --also {DATA}/digits_cnn.onnx --samples 2 "
    "--forms qdq --commands compare report",
    "bench_unseen": "--nets digits_cnn --samples 8",
    "bench_yardsticks": "--nets digits_cnn --samples 24 --variants 4",
    "bench_task": "--nets digits_cnn --form per-tensor --samples 60",
    "bench_store": f"{DATA}/digits_cnn.onnx {DATA}/digits_holdout.npz --samples 1 --rounds 1",
}
SHOWS = {
    "bench_audit": ["2 networks, 6 engines", "| INT8 |"],
    "bench_backends": ["| digits_cnn | onnxruntime |", "| 14 of 14 |"],
    "bench_calibrate": ["qdebug", "onnxruntime", "× floor"],
    "bench_calibrators": ["GB/s", "mean-max"],
    "bench_candidates": ["a layer in 10 in FP16", "× FP32"],
    "bench_changes": ["| digits_cnn | by-noise | 1.0000 |", "the same: nothing of it was kept"],
    "bench_check": ["| values 0 to 255 | 0.12 value-range |", "5 of 6 mistakes"],
    "bench_cluster": ["compare   local:1 ", "1.00 x"],
    "bench_compare": ["compare --keep all/float16", "× (floor + disk)"],
    "bench_cures": ["weights per-channel"],
    "bench_diagnosis": ["15 faults planted", "Healthy networks"],
    "bench_effect": ["| digits_cnn | 14 | 16 |"],
    "bench_effect_cost": ["| 4 | 4 | 8 |"],
    "bench_effect_draws": ["2 networks of 14 to 18 layers", "| yes | 208 | 32 | 4 |"],
    "bench_formats": ["| network | INT8 | FP8 | A16W8 | BF16 | FP16 |", "| digits_cnn | 1.000, "],
    "bench_fp16": ["FP16, tensorrt", "× FP32"],
    "bench_gpu_formats": ["digits_cnn fp8: built; 0 not as planned"],
    "bench_large": ["| W3, 0.04 GB | floor |", "| 1.00 |"],
    "bench_parts": ["| `amax-by-8` | clipping |", "fp16: 1 networks, 19 layers"],
    "bench_pictures": ["a quarter", "pictures / npz: wall"],
    "bench_prefix_cache": ["evaluations", "everywhere"],
    "bench_providers": ["fp32_db: inf", "tensors: 32"],
    "bench_producers": ["| nncf", "| 32 of 32 | 32 |", "dynamic"],
    "bench_repair": ["| fp32 | 0.988 |", "| ort-minmax | 0.9"],
    "bench_repair_cost": ["CPU s, peak", "bias-correction"],
    "bench_report": ["Frames/s", "| digits_cnn |"],
    "bench_screening": ["| cnn 1 | 11 |"],
    "bench_task": ["| digits_cnn | 14 |", " of 1 right"],
    "bench_store": ["float16 write", "chunks up to"],
    "bench_strangers": ["| qdq | 1 | 1 done |"],
    "bench_unseen": ["| digits_cnn | FP32 | 1.000 |", "| weights alone | ", "| best calibrator | "],
    "bench_yardsticks": ["| digits_cnn, classifier: 1.000", "|  | noise | "],
}
NEEDS_BUILDER = ("bench_audit", "bench_gpu_formats")
NEEDS_BROWSER = ("bench_report",)
NEEDS_GPU = ("bench_engine",)


OWN_WORKERS = ("bench_diagnosis", "bench_parts")
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
    assert {path.stem for path in BENCH.glob("bench_*.py")} == {*ARGUMENTS, *NEEDS_GPU}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_benchmark_measures(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if name == "bench_strangers":  # it keeps what it made, for the next run
        monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    if name in NEEDS_BUILDER:
        pytest.importorskip("tensorrt_rtx", reason="needs TensorRT for RTX")
    if name in NEEDS_BROWSER and (why := missing()):
        pytest.skip(why)
    said = _run(name, *ARGUMENTS[name].replace("{tmp}", str(tmp_path / "file")).split())
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
    paths = [str(BENCH / f"{name}.py") for name in (*ARGUMENTS, *NEEDS_GPU)]
    done = forked.run(["-c", HELP, *paths])
    assert done.returncode == 0, done.stderr
    for name in (*ARGUMENTS, *NEEDS_GPU):
        assert f"usage: {name}.py" in done.stdout
        assert f"scripts/bench/{name}.py" in done.stdout
