"""`qdebug bisect` where candidates run as engines: built by a fake, the answer's by the library."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from fake_execution import execute_with_fake
from spoilt_engines import perceptron, spoilt_in_int8

from qdebug.backends.tensorrt.execute.device import find_device
from qdebug.decide.bisect.choices import costs_of
from qdebug.decide.bisect.steps import Setup
from qdebug.plan.cost import Costs
from qdebug.testing.tensorrt import fake_build


def by_work(how: Any, setup: Setup) -> Costs:
    """Costs by multiply-accumulates: the fake measures no layers."""
    return costs_of(how, setup.pair, setup.searched.samples, None)


RTX = ["--backend", "tensorrt-rtx", "--compute-capability", "8.9"]


@pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None or not isinstance(find_device(), str),
    reason="needs TensorRT for RTX, and no GPU: tests/gpu has the same on one",
)
def test_the_search_goes_on_where_the_engine_disagrees(
    desk: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The simulation pins `second`; the engine gets `fourth` wrong as well."""

    net = perceptron(tmp_path)
    flags = ["bisect", net.model, "--inputs", net.samples, "--pin-to", "fp32",
             "--target", "output.sqnr_db>=25", *RTX, "--json", "-"]  # fmt: skip
    simulated = desk.run(*flags)
    assert simulated.code == 0 and simulated.json["pinned"] == ["second"]
    monkeypatch.setattr("qdebug.decide.bisect.steps._costs", by_work)
    execute_with_fake(monkeypatch, spoilt_in_int8(fake_build, "fourth"))
    found = desk.run(*flags)
    assert found.code == 0 and found.json["pinned"] == ["second", "fourth"]
    assert any("on the engine" in note for note in found.json["notes"])
    assert found.json["checks"][-1]["passed"]
    causes = {x["name"]: [c["label"] for c in x["causes"]] for x in found.json["layers"]}
    assert causes["fourth"][0] == "kernel" and "kernel" not in causes["second"]


@pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None or not isinstance(find_device(), str),
    reason="needs TensorRT for RTX, and no GPU",
)
def test_layers_inside_engines_are_observed_as_asked(
    desk: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A target on layers looks into every candidate's engine."""
    debugged: list[str] = []

    def build(library: Any, proto: Any, settings: Any, **options: Any) -> Any:
        debugged.extend(options.get("debug", ()))
        return fake_build(library, proto, settings, **options)

    monkeypatch.setattr("qdebug.decide.bisect.steps._costs", by_work)
    execute_with_fake(monkeypatch, build)
    net = perceptron(tmp_path)
    flags = ["bisect", net.model, "--inputs", net.samples, "--target", "layer.sqnr_db>=12", *RTX]
    assert desk.run(*flags).code == 0 and not debugged
    assert desk.run(*flags, "--capture", "debug", "--no-cache").code == 0 and debugged
