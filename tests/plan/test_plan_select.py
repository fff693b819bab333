"""Layers named by the user."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refused

from qdebug.network.layers import Layers, find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import Model, prepare_model
from qdebug.plan.select import select_layers

CNN = Path(__file__).parents[2] / "calib_data" / "digits_cnn.onnx"


@pytest.fixture(scope="module")
def digits() -> tuple[Model, Layers]:
    model = prepare_model(read_model(str(CNN)))
    return model, find_layers(model.graph)


def _names(digits: tuple[Model, Layers], *wanted: str) -> list[str]:
    return [layer.name for layer in select_layers(wanted, *digits, "--pin")]


def test_names_patterns_and_operators(digits: tuple[Model, Layers]) -> None:
    first = "/blocks/blocks.0/depthwise/conv/Conv"
    assert _names(digits, first) == [first]
    assert _names(digits, "/blocks/blocks.0/depthwise/act/Clip") == [first]  # a node of the layer
    depthwise = [layer.name for layer in digits[1] if "depthwise" in layer.name]
    assert len(depthwise) == 6
    assert _names(digits, "*depthwise*") == depthwise
    assert _names(digits, "*blocks.?/depthwise*", first) == depthwise  # once, in execution order
    assert all(digits[1].by_name[n].op_type == "Gemm" for n in _names(digits, "op:Gemm"))


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ("/blocks/blocks.0/depthwise/conv/Con", "'/blocks/blocks.0/depthwise/conv/Conv'"),
        ("*nothing*", "no layer matches"),
        ("op:gem", "Did you mean 'op:Gemm'"),
        ("op:Softmx", "'Softmx'\n  It has "),
        ("op:Clip", "It is part of the layers of op:Conv here. It has"),
    ],
)
def test_what_there_is_not(digits: tuple[Model, Layers], wanted: str, says: str) -> None:
    with refused("QD-PLAN-LAYER") as caught:
        select_layers([wanted], *digits, "--pin")
    assert says in str(caught.value)


def test_brackets_are_characters(digits: tuple[Model, Layers]) -> None:
    with refused("QD-PLAN-LAYER"):
        select_layers(["*[dc]onv*"], *digits, "--pin")
