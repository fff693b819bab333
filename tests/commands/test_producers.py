"""What other tools quantized, made by the tools themselves, against float64 arithmetic.

Models of NNCF, AIMET, Model Optimizer and PyTorch are in tests/producers, made by
scripts/make_quantized_models.py; those of ONNX Runtime are made here.
"""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from producers import ONNX_RUNTIME, TOOLS, judge, quantized_by_onnx_runtime

import qdebug

ROOT = Path(__file__).parents[2]
MADE = ROOT / "tests" / "producers"
CNN = ROOT / "calib_data" / "digits_cnn.onnx"
IMAGES = np.load(ROOT / "calib_data" / "digits_holdout.npz")["input"][:16]


def _compared(reference: Path, quantized: Path) -> Any:
    """Without effects causes are weighed at the layers' own outputs, as the judge does."""
    how = {"inputs": {"input": IMAGES}, "reference": str(reference)}
    return qdebug.compare(str(quantized), **how, effect="none").to_dict()


@pytest.mark.parametrize("tool", TOOLS)
def test_models_of_other_tools(tool: str) -> None:
    quantized = MADE / f"{tool}.onnx"
    found = _compared(MADE / "fp32.onnx", quantized)
    verdict = judge(onnx.load(MADE / "fp32.onnx"), onnx.load(quantized), IMAGES, found)
    assert verdict.tensors == verdict.of == 9 and verdict.worst_db < 0.01
    assert verdict.judged >= 4 and verdict.wrong == ()
    # NNCF corrected the bias of one layer: it says so, and does not call it rounding.
    corrected = [m["tensor"] for m in found["correspondence"]["matches"] if not m["proven"]]
    assert corrected == (["conv2d"] if tool == "nncf" else [])


@pytest.mark.parametrize("way", ONNX_RUNTIME)
def test_models_of_onnx_runtime(tmp_path: Path, way: str) -> None:
    quantized = quantized_by_onnx_runtime(way, CNN, tmp_path)
    verdict = judge(onnx.load(CNN), onnx.load(quantized), IMAGES, _compared(CNN, quantized))
    assert verdict.tensors == verdict.of == verdict.proven == 32
    assert verdict.worst_db < 0.01 and verdict.wrong == ()
    assert verdict.judged >= 16 or way in ("qoperator", "dynamic")


def test_the_judge_can_fail() -> None:
    quantized = MADE / "aimet.onnx"
    found = _compared(MADE / "fp32.onnx", quantized)
    protos = onnx.load(MADE / "fp32.onnx"), onnx.load(quantized)
    worse = copy.deepcopy(found)
    worse["tensors"][3]["sqnr_db"] += 1
    assert judge(*protos, IMAGES, worse).worst_db > 0.99
    blamed = copy.deepcopy(found)
    layer = next(x for x in blamed["layers"] if x["causes"])
    layer["causes"] = [
        {"label": "rounding", "share": 0.0, "evidence": "caused by rounding its weight"}
    ]
    layer["causes"][0]["share"] = 1.0 if layer["op_type"] == "ReduceMean" else 0.01
    assert judge(*protos, IMAGES, blamed).wrong


def test_the_files_are_those_of_the_manifest() -> None:
    manifest = json.loads((MADE / "manifest.json").read_text(encoding="utf-8"))
    assert {"fp32", *TOOLS} == set(manifest)
    for name, entry in manifest.items():
        data = (MADE / f"{name}.onnx").read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry["sha256"]
        assert len(data) < 100_000
