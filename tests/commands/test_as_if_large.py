"""The main commands with every size limit at its smallest: small networks take the ways of large
ones, and the answers are the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from as_if_large import LEAST_WORK, SMALLEST, as_if_large
from producers import ONNX_RUNTIME, TOOLS, quantized_by_onnx_runtime, small_network

import qdebug
from qdebug.network.graph import Graph
from qdebug.network.load import read_model

ROOT = Path(__file__).parents[2]
MADE = ROOT / "tests" / "producers"
CNN = ROOT / "calib_data" / "digits_cnn.onnx"
HELD = np.load(ROOT / "calib_data" / "digits_holdout.npz")
IMAGES = HELD["input"][:16]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    as_if_large(monkeypatch)


class Quantized:
    """A quantized model, the FP32 one that it was made from, and how they compare as usual."""

    def __init__(self, way: str, folder: Path) -> None:
        if way in TOOLS:
            self.model, self.reference = MADE / f"{way}.onnx", MADE / "fp32.onnx"
        else:
            # Dynamic scales are those of a batch, which shows in a network of few layers.
            self.reference = CNN if way == "dynamic" else small_network(folder)
            (folder / "quantized").mkdir()
            self.model = quantized_by_onnx_runtime(way, self.reference, folder / "quantized")
        self.expected = self.compared()

    def compared(self, **settings: Any) -> Any:
        return qdebug.compare(
            str(self.model),
            inputs={"input": IMAGES},
            reference=str(self.reference),
            effect="exact",
            **settings,
        ).to_dict()


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Quantized]:
    """By the way that it was quantized, each made once. To be called before limits are set."""
    return cache(lambda way: Quantized(way, tmp_path_factory.mktemp("quantized")))


def _agree(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """The same tensors and layers with the same errors, but for other sums in float32."""
    for kind in ("tensors", "layers", "outputs"):
        assert len(found[kind]) == len(expected[kind])
    for one, other in zip(found["tensors"], expected["tensors"], strict=True):
        assert one["name"] == other["name"]
        assert one["sqnr_db"] == pytest.approx(other["sqnr_db"], abs=0.05)
    effects = {x["name"]: x["effect"]["output_share"] for x in expected["layers"] if x["effect"]}
    assert effects
    for layer in found["layers"]:
        if layer["effect"]:
            share = layer["effect"]["output_share"]
            assert share == pytest.approx(effects[layer["name"]], abs=0.02)


@pytest.mark.parametrize("way", [*TOOLS, *ONNX_RUNTIME])
def test_quantized_models_are_compared_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantized: Any, way: str
) -> None:
    one = quantized(way)
    expected = one.expected
    as_if_large(monkeypatch)
    run = str(tmp_path / "run.h5")
    found = one.compared(output=run)
    qdebug.report(run, output=str(tmp_path / "page.html"))
    _agree(found, expected)
    assert found["summary"]["layers"] == expected["summary"]["layers"]
    # Above 100 dB is float32's own rounding; none at all is null.
    restored = [x["summary"]["restored_sqnr_db"] or 100 for x in (found, expected)]
    assert min(restored[0], 100) == pytest.approx(min(restored[1], 100), abs=0.1)


@pytest.mark.parametrize("way", ["default", "qoperator", "dynamic", "int8", "fp16"])
def test_a_network_too_costly_to_measure_every_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantized: Any, way: str
) -> None:
    """Groups of layers, samples that are drawn, and a budget that nothing fits."""
    planned = way in ("int8", "fp16")
    one = None if planned else quantized(way)

    def compared(**settings: Any) -> Any:
        result = qdebug.compare(
            str(one.model if one else CNN),
            inputs={"input": IMAGES},
            reference=str(one.reference) if one else None,
            precision=way if planned else None,
            **settings,
        )
        assert not result.failed
        return result.to_dict()

    expected = one.expected if one else compared(effect="none")
    as_if_large(monkeypatch, {**SMALLEST, **LEAST_WORK})
    run = str(tmp_path / "run.h5")
    found = compared(output=run, memory_budget="1M")
    assert found["effect"]["layers"] < found["effect"]["of_layers"]
    assert way == "fp16" or found["summary"]["layers"]  # FP16 does no harm here
    for one, other in zip(found["tensors"], expected["tensors"], strict=True):
        assert one["sqnr_db"] == pytest.approx(other["sqnr_db"], abs=0.05)


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_an_fp32_model_is_compared_alike(
    tmp_path: Path, request: pytest.FixtureRequest, precision: str
) -> None:
    def compared() -> Any:
        result = qdebug.compare(
            str(CNN),
            inputs={"input": IMAGES, "labels": HELD["labels"][:16]},
            precision=precision,
            weights="per-tensor",
            metric="top1",
            output=str(tmp_path / "run.h5"),
            force=True,
            cache=False,
        )
        return result.to_dict()

    expected = compared()
    request.getfixturevalue("large")
    found = compared()
    _agree(found, expected)
    worst = [result["metric"].pop("worst") for result in (found, expected)]
    for each, its in zip(*worst, strict=True):  # as exact as the outputs
        assert each == pytest.approx(its, rel=0.05, abs=1e-4)
    assert found["metric"] == expected["metric"]


def test_a_search_and_a_repair_end_alike(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    def searched() -> Any:
        found = qdebug.bisect(
            str(CNN),
            inputs={"input": IMAGES},
            weights="per-tensor",
            target="output.sqnr_db>=20",
            output=str(tmp_path / "plan.yaml"),
            force=True,
            cache=False,
        )
        repaired = qdebug.repair(
            str(CNN),
            calib_data={"input": HELD["input"][16:64]},
            inputs={"input": IMAGES},
            weights="per-tensor",
            target="output.sqnr_db>=25",
            output=str(tmp_path / "repaired.onnx"),
            force=True,
            cache=False,
        )
        return found, repaired

    expected = searched()
    request.getfixturevalue("large")
    found = searched()
    assert found[0].pinned == expected[0].pinned
    assert found[1].passed == expected[1].passed


def test_calibration_ends_alike(request: pytest.FixtureRequest) -> None:
    def calibrated() -> Any:
        return qdebug.calibrate(
            str(CNN), calib_data={"input": IMAGES}, method="minmax,entropy,mse", cache=False
        ).to_dict()

    expected = calibrated()
    request.getfixturevalue("large")
    found = calibrated()
    for name, method in expected["methods"].items():
        for tensor, entry in method["tensors"].items():
            again = found["methods"][name]["tensors"][tensor]["amax"]
            assert again == pytest.approx(entry["amax"], rel=1e-4)


@pytest.mark.usefixtures("large")
def test_weights_do_lie_in_files() -> None:
    graph = Graph(read_model(str(CNN)).proto)
    kinds = {t.data_location for t in graph.initializers.values()}
    assert onnx.TensorProto.EXTERNAL in kinds
