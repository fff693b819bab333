"""What a comparison notes of its layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from half_networks import Builder

import qdebug
from qdebug.analyse.layer_results import effect_notes
from qdebug.metrics.effect import EffectSummary


@pytest.mark.parametrize(
    ("of_samples", "says"),
    [(64, "More samples may tell"), (65, "measures on all 65 samples")],
)
def test_what_would_make_ranks_certain(of_samples: int, says: str) -> None:
    """No more samples are promised than there are."""
    summary = EffectSummary(
        noise=1.0, samples=64, alone_samples=64, layers=3, of_layers=3, certain_ranks=0
    )
    model, samples = _chosen()
    result = qdebug.compare(model, inputs=samples, calib_data=samples, effect="none", cache=False)
    layers = [x for x in result.layers if not x.overflows]
    (note,) = effect_notes(summary, layers, of_samples)
    assert says in note


def _chosen() -> tuple[Any, Any]:
    """A network in which INT8 chooses values that FP32 masks with -inf, and their exponential; and
    its samples."""
    b = Builder(3)
    noisy = b.add("MatMul", "x", b.constant(np.eye(8, dtype=np.float32)))
    mask = np.where(np.arange(8) % 2, 0.0, -np.inf).astype(np.float32)
    best = b.add("ArgMax", noisy, axis=1, keepdims=1)
    chosen = b.add("GatherElements", b.add("Add", "x", b.constant(mask)), best, axis=1)
    random = np.random.default_rng(0)
    x = random.uniform(0, 1e-3, (32, 8)).astype(np.float32)
    x[:, 1::2] += 0.001 + random.uniform(0, 1e-3, (32, 4)).astype(np.float32)
    x[0, 1] = 1.0  # one INT8 step is then coarser than what tells the scores apart
    return b.model({"x": ["n", 8]}, [b.add("Exp", chosen)]), {"x": x}


def test_infinities_that_int8_chooses_are_no_overflow() -> None:
    model, samples = _chosen()
    result = qdebug.compare(model, inputs=samples, calib_data=samples, effect="none", cache=False)
    notes = [n for n in result.notes if "NaN or Inf where FP32 does not" in n]
    assert len(notes) == 1 and "overflow" not in notes[0], result.notes


@pytest.mark.parametrize(("kernels", "noted"), [("tensorrt", True), ("exact", False)])
def test_operators_whose_kernels_were_not_examined(kernels: Any, noted: bool) -> None:
    b = Builder(5)
    model = b.model(
        {"x": ["n", 8]}, [b.add("CumSum", b.linear("x", 8, 8), b.constant(1, np.int32))]
    )
    x = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    result = qdebug.compare(
        model, inputs={"x": x}, precision="fp16", fp16_kernels=kernels, effect="none", cache=False
    )
    found = [n for n in result.notes if "1 CumSum" in n]
    assert bool(found) is noted, result.notes
