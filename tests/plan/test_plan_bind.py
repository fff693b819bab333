"""A plan is checked against the model before anything is run."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from refusals import refused

from qdebug.plan.plan import PrecisionPlan, TensorRange, pinned
from qdebug.plan.select import nearest
from qdebug.types import Precision


def _precisions(kit: SimpleNamespace, model: Any, plan: PrecisionPlan) -> dict[str, str]:
    return {k: str(v) for k, v in kit.bound(model, plan).precisions.items()}


def test_defaults(kit: SimpleNamespace, residual_net: Any) -> None:
    model = residual_net()
    assert _precisions(kit, model, kit.int8()) == {
        "conv1": "int8", "conv2": "int8", "pool": "fp32", "flatten": "fp32", "fc": "int8",
    }  # fmt: skip
    assert _precisions(kit, model, kit.int8(fallback_precision=Precision.FP16))["pool"] == "fp16"
    half = _precisions(kit, model, kit.int8(precision=Precision.FP16))
    assert set(half.values()) == {"fp16"}


@pytest.mark.parametrize("name", ["conv2", "add", "relu2"])
def test_any_node_of_a_layer_names_it(kit: SimpleNamespace, residual_net: Any, name: str) -> None:
    found = _precisions(kit, residual_net(), kit.int8(layers={name: "fp16"}))
    assert found["conv2"] == "fp16"
    assert found["conv1"] == "int8"


def test_a_folded_batchnorm_names_its_conv(kit: SimpleNamespace) -> None:
    rng = np.random.default_rng(0)
    ones = {n: rng.uniform(0.5, 1, 4).astype(np.float32) for n in ("s", "b", "m", "v")}
    proto = kit.make(
        [
            kit.node("Conv", ["x", "w"], ["c"], "my/conv"),
            kit.node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"], "my/bn"),
            kit.node("Relu", ["n"], ["y"], "my/relu"),
        ],
        {"x": (1, 3, 4, 4)},
        ["y"],
        {"w": rng.normal(size=(4, 3, 1, 1)).astype(np.float32), **ones},
    )
    model = kit.prepare(proto)
    assert "my/bn" not in model.graph.by_name
    for name in ("my/conv", "my/bn", "my/relu"):
        assert _precisions(kit, model, kit.int8(layers={name: "fp32"})) == {"my/conv": "fp32"}


def test_conflicting_precisions_in_one_layer(kit: SimpleNamespace, residual_net: Any) -> None:
    with refused("QD-PLAN-CONFLICT", "'conv2'", "'relu2'"):
        kit.bound(residual_net(), kit.int8(layers={"conv2": "fp16", "relu2": "fp32"}))
    same = kit.int8(layers={"conv2": "fp16", "relu2": "fp16"})
    assert _precisions(kit, residual_net(), same)["conv2"] == "fp16"


def test_unknown_layer_suggests_the_nearest(kit: SimpleNamespace, residual_net: Any) -> None:
    with refused("QD-PLAN-LAYER", "'cnov2'") as caught:
        kit.bound(residual_net(), kit.int8(layers={"cnov2": "fp16"}))
    assert caught.value.hint == "The closest name is 'conv2'."
    assert nearest("x", []) == "There are none."


def test_unknown_tensor_suggests_the_nearest(kit: SimpleNamespace, residual_net: Any) -> None:
    with refused("QD-PLAN-TENSOR", "'r11'") as caught:
        kit.bound(residual_net(), kit.int8({"r11": 1}))
    assert caught.value.hint == "The closest name is 'r1'."


def test_weights_inputs_and_activations_are_known_tensors(
    kit: SimpleNamespace, residual_net: Any
) -> None:
    bound = kit.bound(residual_net(), kit.int8({"w1": 1, "x": 1, "r1": 1, "out": 2}))
    assert list(bound.plan.tensors) == ["w1", "x", "r1", "out"]
    assert bound.missing_ranges() == ["f"]


def test_int8_for_a_layer_without_int8_form(kit: SimpleNamespace, residual_net: Any) -> None:
    with refused("QD-PLAN-NO-INT8", "'pool'"):
        kit.bound(residual_net(), kit.int8(layers={"pool": "int8"}))


def test_another_models_plan(kit: SimpleNamespace, residual_net: Any) -> None:
    with refused("QD-PLAN-OTHER-MODEL"):
        kit.bound(residual_net(), replace(kit.int8(), model_sha256="f" * 64))
    kit.bound(residual_net(), replace(kit.int8(), model_sha256="sha"))


def test_needed_and_missing_ranges(kit: SimpleNamespace, residual_net: Any) -> None:
    bound = kit.bound(residual_net(), kit.int8({"x": 1}))
    assert bound.needed_ranges() == ["x", "r1", "f"]
    assert bound.missing_ranges() == ["r1", "f"]
    pinned = kit.bound(residual_net(), kit.int8(layers={"conv2": "fp16", "fc": "fp32"}))
    assert pinned.needed_ranges() == ["x"]


def test_a_plans_own_range_wins_over_calibration(kit: SimpleNamespace) -> None:
    plan = kit.int8({"x": 1}).with_ranges({"x": TensorRange(9.0), "y": TensorRange(2.0)}, "cal")
    assert (plan.tensors["x"].amax, plan.tensors["y"].amax, plan.calibration) == (1.0, 2.0, "cal")


@pytest.mark.parametrize("names", [("/a:b;c", "слой 1", "e" * 300), ("", "", "dup")])
def test_odd_names(kit: SimpleNamespace, names: tuple[str, ...]) -> None:
    w = np.eye(3, dtype=np.float32)
    tensors = ["x", "t;1", "t:2", "yé"]
    nodes = [kit.node("MatMul", [tensors[i], "w"], [tensors[i + 1]], names[i]) for i in range(3)]
    model = kit.prepare(kit.make(nodes, {"x": (2, 3)}, ["yé"], {"w": w}))
    plan = kit.int8({"x": 1, "t;1": 1, "t:2": 1})
    bound = kit.bound(model, plan)
    assert len(bound.precisions) == 3
    for name in filter(None, names):
        pinned = kit.bound(model, replace(plan, layers={name: Precision.FP32}))
        assert list(pinned.precisions.values()).count(Precision.FP32) == 1
    x = np.array([[0.1, 0.2, -1], [0.5, 0, 1]], np.float32)
    y = kit.run(kit.lowered(model, plan).graph, {"x": x})["yé"]
    np.testing.assert_allclose(y, kit.fake(x, 1.0), atol=1e-2)


def test_patterns_and_operators_name_layers(kit: SimpleNamespace, residual_net: Any) -> None:
    named = kit.int8(layers={"op:Conv": "fp32", "*": "fp16"})
    assert set(_precisions(kit, residual_net(), named).values()) == {"fp16"}  # the later one holds
    named = kit.int8(layers={"conv1": "int8", "op:Conv": "fp32"})
    assert _precisions(kit, residual_net(), named) == {
        "conv1": "int8", "conv2": "fp32", "pool": "fp32", "flatten": "fp32", "fc": "int8",
    }  # fmt: skip


def test_a_pattern_in_int8_leaves_out_what_cannot(kit: SimpleNamespace, residual_net: Any) -> None:
    plan = kit.int8(precision=Precision.FP32, layers={"*": "int8"})
    assert _precisions(kit, residual_net(), plan)["pool"] == "fp32"
    with refused("QD-PLAN-NO-INT8", "'po*' (GlobalAveragePool)"):
        kit.bound(residual_net(), kit.int8(layers={"po*": "int8"}))


@pytest.mark.parametrize("text", ["op:GRU", "nothing*"])
def test_what_nothing_matches(kit: SimpleNamespace, residual_net: Any, text: str) -> None:
    with refused("QD-PLAN-LAYER", text.removeprefix("op:")):
        kit.bound(residual_net(), kit.int8(layers={text: "fp32"}))


def test_pinned_layers_are_named_in_the_plan(kit: SimpleNamespace, residual_net: Any) -> None:
    bound = kit.bound(residual_net(), kit.int8(layers={"relu1": "fp16", "op:Gemm": "fp16"}))
    plan = pinned(bound, ["conv1"], Precision.FP32)
    assert plan.layers == {"conv1": "fp32", "fc": "fp16"}
