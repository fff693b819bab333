"""Real networks, some of whose scales were spoilt: the search must name exactly those layers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qdebug.commands.bisect import bisect
from qdebug.config.bisect import BisectSettings
from qdebug.decide.bisect.setup import prepare
from qdebug.decide.search.outcome import BisectResult
from qdebug.network.layers import find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.plan.plan import PrecisionPlan, TensorRange
from qdebug.plan.planfile import plan_to_yaml
from qdebug.types import ignore_progress

BUNDLED = Path(__file__).parents[2] / "calib_data"
NETWORKS = ("digits_cnn", "digits_encoder")


def _settings(network: str, **changes: object) -> BisectSettings:
    settings = BisectSettings(
        model=str(BUNDLED / f"{network}.onnx"),
        inputs=str(BUNDLED / "digits_calib.npz"),
        holdout=str(BUNDLED / "digits_holdout.npz"),
        target="output.sqnr_db>=0",
        pin_to="fp32",
        cache=False,
    )
    return replace(settings, **changes)


@pytest.fixture(scope="module")
def healthy() -> dict[str, tuple[PrecisionPlan, dict[str, str], float]]:
    """By network: the calibrated plan, layer -> a tensor that it alone reads, and the SQNR."""
    found = {}
    for network in NETWORKS:
        setup = prepare(_settings(network), ignore_progress)
        bound = setup.planned.bound
        readers: dict[str, list[str]] = {}
        for layer in bound.layers:
            for tensor in layer.quantized_inputs:
                readers.setdefault(tensor, []).append(layer.name)
        alone = {names[0]: t for t, names in readers.items() if len(names) == 1}
        result = bisect(_settings(network))
        assert result.search.baseline is not None and result.search.baseline.value is not None
        found[network] = (bound.plan, alone, result.search.baseline.value)
    return found


def _search(
    folder: Path, network: str, plan: PrecisionPlan, spoilt: list[str], target: float
) -> BisectResult:
    # 64 times too wide: what is left of a tensor is one or two steps.
    ranges = {t: TensorRange(float(np.max(plan.tensors[t].amax)) * 64) for t in spoilt}
    path = folder / "spoilt.yaml"
    path.write_text(plan_to_yaml(replace(plan, tensors={**plan.tensors, **ranges})), "utf-8")
    return bisect(_settings(network, plan=str(path), target=f"output.sqnr_db>={target}"))


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("count", [1, 3])
def test_planted_culprits(
    tmp_path: Path,
    healthy: dict[str, tuple[PrecisionPlan, dict[str, str], float]],
    network: str,
    count: int,
) -> None:
    plan, alone, sqnr = healthy[network]
    rng = np.random.default_rng(count)
    evaluations = []
    for _ in range(2):
        layers = sorted(rng.choice(sorted(alone), size=count, replace=False).tolist())
        tensors = [alone[name] for name in layers]
        result = _search(tmp_path, network, plan, tensors, sqnr - 1)
        assert result.found and result.search.minimal
        assert sorted(layer.name for layer in result.layers) == layers
        evaluations.append(result.search.evaluations)
    n = result.candidates
    bound = 2 * count * math.log2(n / count) + 2 * count + 10
    assert np.mean(evaluations) <= bound, (evaluations, bound)


@pytest.mark.parametrize(
    ("network", "weights", "target"),
    [("digits_cnn", "per-tensor", 15.0), ("digits_encoder", None, 40.0)],
)
def test_auto_is_the_cheapest(network: str, weights: str | None, target: float) -> None:
    settings = _settings(
        network,
        weights=weights,
        inputs=str(BUNDLED / "digits_holdout.npz"),
        holdout=str(BUNDLED / "digits_calib.npz"),
        calib_data=str(BUNDLED / "digits_calib.npz"),
        samples=128,
        target=f"output.sqnr_db>={target}",
    )
    found = {
        name: bisect(replace(settings, strategy=name))
        for name in ("auto", "rank", "ddmin", "prefix", "suffix")
    }
    assert all(result.found for result in found.values())
    cheapest = found["auto"]
    assert cheapest.layers and cheapest.search.minimal
    assert cheapest.cost.plan <= min(result.cost.plan for result in found.values())
    assert cheapest.search.evaluations < found["ddmin"].search.evaluations


@pytest.mark.parametrize(
    ("network", "weights", "target"),
    [("digits_cnn", "per-tensor", 8.0), ("digits_encoder", None, 36.5)],
)
def test_twelve_layers_get_the_cheapest_set(
    network: str, weights: str | None, target: float
) -> None:
    """All other layers stay in INT8; `exhaustive` asks for every cheaper set."""
    found = find_layers(prepare_model(read_model(str(BUNDLED / f"{network}.onnx"))).graph)
    names = [layer.name for layer in found if layer.quantizable]
    free = {names[i * len(names) // 12] for i in range(12)}
    settings = _settings(
        network,
        weights=weights,
        inputs=str(BUNDLED / "digits_holdout.npz"),
        holdout=str(BUNDLED / "digits_calib.npz"),
        calib_data=str(BUNDLED / "digits_calib.npz"),
        samples=128,
        target=f"output.sqnr_db>={target}",
        never_pin=tuple(name for name in names if name not in free),
    )
    auto = bisect(settings)
    assert auto.candidates == 12 and auto.found and auto.layers
    cheapest = bisect(replace(settings, strategy="exhaustive"))
    assert auto.search.pins == cheapest.search.pins
    assert auto.search.evaluations <= cheapest.search.evaluations
    cost = prepare(settings, ignore_progress).space.problem.cost
    cheaper = {e.pins for e in cheapest.search.history if cost(e.pins) < cheapest.search.cost}
    assert cheapest.search.cheaper_left == 0
    assert auto.search.cheaper_left == len(cheaper - {e.pins for e in auto.search.history})
