"""A model whose preparation changed what it computes is told of before INT8 is blamed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from half_networks import Builder
from onnx import numpy_helper

import qdebug
from qdebug.network import prepare
from qdebug.network.graph import Graph

X = np.random.default_rng(5).normal(size=(6, 3, 8, 8)).astype(np.float32)


def network() -> onnx.ModelProto:
    b = Builder(3)
    h = b.add("Conv", "x", b.weight(4, 3, 3, 3), b.weight(4))
    ones = [b.constant(np.linspace(0.5, 1.5, 4)) for _ in range(4)]
    return b.model({"x": ["n", 3, 8, 8]}, [b.add("BatchNormalization", h, *ones)])


def scaled(proto: onnx.ModelProto, factor: float) -> onnx.ModelProto:
    """A model with its constants multiplied, in place."""
    for tensor in proto.graph.initializer:
        values = numpy_helper.to_array(tensor) * np.float32(factor)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return proto


@pytest.mark.parametrize(("factor", "is_used"), [(1.0, True), (1.0003, True), (1.003, False)])
def test_a_fold_that_changes_the_network_is_not_used(
    monkeypatch: pytest.MonkeyPatch, factor: float, is_used: bool
) -> None:
    right = prepare.fuse

    def fuse(graph: Graph) -> Any:
        folded, stands_for = right(graph)
        return scaled(folded, factor), stands_for

    monkeypatch.setattr(prepare, "fuse", fuse)
    result = qdebug.compare(network(), inputs={"x": X}, effect="none", cache=False)
    told = any(note.startswith("The file is used as it is") for note in result.notes)
    assert told is not is_used
    names = {node for layer in result.layers for node in layer.nodes}
    assert len(names) == 2  # the BatchNormalization is a part of the layer, folded or not


def test_a_conversion_that_changes_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    right = prepare.convert_opset
    monkeypatch.setattr(prepare, "convert_opset", lambda *given: scaled(right(*given), 1.003))
    result = qdebug.compare(network(), inputs={"x": X}, effect="none", cache=False)
    assert any(note.startswith("FP32 is in doubt") for note in result.notes)


def test_a_free_batch_of_which_only_one_sample_runs() -> None:
    """The exporter declares the axis free, and an operator inside was traced for one sample."""
    b = Builder(3)
    h = b.linear(b.add("Reshape", "x", b.constant([1, 192], np.int64)), 192, 8)
    h = b.add("Concat", b.add("Reshape", h, b.constant([8], np.int64)), b.constant([1.0]), axis=0)
    out = b.add("Reshape", h, b.constant([1, 9], np.int64))
    model = b.model({"x": ["n", 3, 8, 8]}, [out])
    result = qdebug.compare(model, inputs={"x": X}, cache=False)
    assert not result.failed and result.effect is not None and result.samples == len(X)
