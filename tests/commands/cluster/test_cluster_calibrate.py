"""`calibrate` on a cluster gives what it gives in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from half_networks import Builder

import qdebug

DATA = Path(__file__).parents[3] / "calib_data"


@pytest.mark.parametrize("fallback", ["fp32", "fp16"])
def test_all_methods(address: str, fallback: str) -> None:
    how: dict[str, Any] = {
        "calib_data": DATA / "digits_calib.npz",
        "holdout": DATA / "digits_holdout.npz",
        "batch_size": 32,
        "metric": "top1",
        "fallback_precision": fallback,
        "cache": False,
    }
    one = qdebug.calibrate(DATA / "digits_cnn.onnx", **how)
    other = qdebug.calibrate(DATA / "digits_cnn.onnx", **how, cluster=address)
    assert one.to_dict() == other.to_dict()


def test_more_executions_than_shards(address: str) -> None:
    """Ranges are equal bit for bit; errors are added up in another order."""
    b = Builder(7)
    model = b.model({"x": ["n", 16]}, [b.linear(b.linear("x", 16, 32), 32, 8)])
    x = np.random.default_rng(0).normal(size=(150, 16)).astype(np.float32)
    how: dict[str, Any] = {"calib_data": {"x": x}, "holdout": {"x": x * 1.5}, "batch_size": 1}
    one = qdebug.calibrate(model, **how, method=["entropy", "minmax"], cache=False)
    other = qdebug.calibrate(
        model, **how, method=["entropy", "minmax"], cache=False, cluster=address
    )
    for name, found in one.methods.items():
        assert other.methods[name].tensors == found.tensors
        for tensor, metrics in found.trial.outputs.items():
            again = other.methods[name].trial.outputs[tensor]
            assert again.rmse == pytest.approx(metrics.rmse, rel=1e-12)
            assert again.max_abs_err == metrics.max_abs_err
