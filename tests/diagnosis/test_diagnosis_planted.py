"""One fault at a time in the bundled networks: the layer it touches stands first, rightly labelled.

`scripts/bench/bench_diagnosis.py` does the same with many faults in many networks.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import planted_channels as channels
import planted_network as planted
import planted_nodes as nodes
import planted_ranges as ranges
import pytest

import qdebug
from qdebug.backends.simulation import SimulationBackend
from qdebug.inmemory import InMemory
from qdebug.network.layers import find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.plan.lower import lower
from qdebug.plan.plan import PrecisionPlan, bind_plan
from qdebug.results.compare import CompareResult
from qdebug.types import Precision

BUNDLED = Path(__file__).parents[2] / "calib_data"


@cache
def network(name: str) -> planted.Network:
    data = BUNDLED / "digits_calib.npz", BUNDLED / "digits_holdout.npz"
    return planted.load(name, BUNDLED / f"{name}.onnx", *data, 16)


@cache
def base(name: str, precision: str = "int8") -> CompareResult:
    return compared(planted.healthy(network(name), precision))


def compared(settings: dict[str, object]) -> CompareResult:
    rest = dict(settings)
    return qdebug.compare(rest.pop("model"), **rest)


def find(name: str, kind: str, place: str) -> planted.Fault:
    makers = {
        "amax-times-8": ranges.wrong_ranges,
        "amax-by-8": ranges.wrong_ranges,
        "calibration-scale": ranges.wrong_calibration,
        "stale-cache": ranges.stale_caches,
        "channel-times-64": channels.unequal_channels,
        "one-weight-scale": channels.one_scale,
        "misplaced-pair": nodes.misplaced_pairs,
        "fp16-norm": nodes.overflowing_norms,
    }
    return next(f for f in makers[kind](network(name)) if (f.kind, f.place) == (kind, place))


CNN, ENCODER = "digits_cnn", "digits_encoder"


@pytest.mark.parametrize(
    ("name", "kind", "place"),
    [
        (CNN, "amax-times-8", "/blocks/blocks.3/Add_output_0"),
        (CNN, "amax-by-8", "/Flatten_output_0"),
        (CNN, "stale-cache", "other-network"),
        (CNN, "calibration-scale", "times-255"),
        (ENCODER, "amax-by-8", "/Reshape_1_output_0"),
        (ENCODER, "channel-times-64", "/layers/layers.0/norm1/LayerNormalization_output_0"),
    ],
)
def test_a_planted_fault(name: str, kind: str, place: str) -> None:
    fault = find(name, kind, place)
    result = compared(dict(fault.settings))
    assert planted.cost_db(result, base(name)) >= 3
    first = result.layers[0]
    assert first.name in fault.culprits
    assert fault.is_named(result)
    assert first.causes[0].share > 0.5


def test_an_overflow_inside_a_normalization_and_its_remedy() -> None:
    """The layers that the remedy names give the output back together; one alone does not."""
    few = replace(network(ENCODER), samples=planted.first(network(ENCODER).samples, 4))
    fault = next(nodes.overflowing_norms(few))
    result = compared(dict(fault.settings))
    first = result.layers[0]
    assert first.name in fault.culprits
    cause = first.causes[0]
    assert cause.label == "fp16-overflow"
    group = re.findall("'([^']+)'", cause.remedy)
    assert set(group) == fault.culprits
    assert pinned(fault, group) > 40 > pinned(fault, group[:1])


def pinned(fault: planted.Fault, layers: list[str]) -> float:
    """The SQNR of the output with these layers in FP32, in dB."""
    plan = PrecisionPlan(Precision.FP16, layers=dict.fromkeys(layers, Precision.FP32))
    how = {**fault.settings, "plan": plan, "effect": "none"}
    return compared(how).outputs[0].metrics.sqnr_db


def test_close_scores() -> None:
    fault = next(nodes.close_scores(network(CNN)))
    result = compared(dict(fault.settings))
    assert fault.is_named(result)
    maker = next(x for x in result.layers if x.name == "/classifier/Gemm")
    assert "index-flip" in [c.label for c in maker.causes]
    assert any("class_ArgMax" in note for note in result.notes)


@pytest.mark.parametrize("name", [CNN, ENCODER])
def test_planting_keeps_the_function(name: str) -> None:
    whole = network(name)
    few = planted.first(whole.samples, 4)
    before = planted.outputs_of(whole.model, few)
    faults = [*channels.unequal_channels(whole), *channels.one_scale(whole)]
    assert faults
    for fault in faults:
        after = planted.outputs_of(fault.settings["model"], few)
        for one, other in zip(before, after, strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-4)


def test_a_healthy_network_is_not_blamed() -> None:
    main = {layer.causes[0].label for layer in base(ENCODER).layers if layer.causes}
    assert "rounding" in main
    assert main <= {"rounding", "accumulation", "amplification"}


def test_a_normalization_may_be_in_two_precisions() -> None:
    """Without anything observed, ONNX Runtime would fuse it into a model that it then refuses."""
    fault = next(nodes.overflowing_norms(network(ENCODER)))
    model = fault.settings["model"]
    prepared = prepare_model(read_model(InMemory("the network", model)))
    layers = find_layers(prepared.graph)
    normalization = fault.place.rpartition("/")[0]
    parts = [layer.name for layer in layers if layer.name.startswith(normalization)]
    assert len(parts) == 9
    for name in parts:
        plan = PrecisionPlan(Precision.FP32, layers={name: Precision.FP16})
        bound = bind_plan(plan, prepared, layers)
        session = SimulationBackend().open(lower(bound).graph.proto, [])
        session.run(planted.first(network(ENCODER).samples, 1))
        session.close()
