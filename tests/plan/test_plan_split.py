"""Channels in parts: the same function, and what it costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import checker
from repair_networks import IMAGES, NETWORKS, TOKENS, Builder

from qdebug.model.prepare import Model
from qdebug.plan.rewrite.split import Split, split_inputs, weight_input_axis
from qdebug.plan.rewrite.weights import input_channels
from qdebug.run.simulation import SimulationBackend


def run(proto: Any, model: Model) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    feeds = {
        spec.name: rng.normal(size=[3 if not isinstance(d, int) else d for d in spec.shape]).astype(
            np.float32
        )
        for spec in model.graph.inputs
    }
    return dict(SimulationBackend(1).open(proto, ()).run(feeds))


def splits_of(model: Model, *, of_weight: bool) -> list[Split]:
    """Of whatever can be split, by random parts."""
    rng = np.random.default_rng(0)
    found: dict[str, Split] = {}
    for node in model.graph.nodes:
        count = input_channels(model.graph, node)
        group = model.graph.attributes(node).get("group", 1)
        if count is None or group != 1 or node.inputs[0] in found:
            continue
        if len(model.graph.consumers[node.inputs[1]]) > 1:
            continue
        parts = 2 ** rng.integers(0, 3, count)
        found[node.inputs[0]] = Split(node.inputs[0], (node.name,), parts, of_weight)
    return list(found.values())


@pytest.mark.parametrize("of_weight", [False, True])
@pytest.mark.parametrize("network", NETWORKS)
def test_the_network_computes_the_same(network: str, of_weight: bool) -> None:
    model = NETWORKS[network]()
    splits = splits_of(model, of_weight=of_weight)
    assert splits
    found = split_inputs(model.graph, splits)
    checker.check_model(found.proto, full_check=True)
    expected = run(model.graph.proto, model)
    for tensor, values in run(found.proto, model).items():
        largest = np.abs(expected[tensor]).max()
        np.testing.assert_allclose(values, expected[tensor], rtol=0, atol=1e-5 * largest)
    kinds = [n.op_type for n in found.proto.graph.node]
    before = [n.op_type for n in model.graph.nodes]
    assert kinds.count("Gather") - before.count("Gather") == len(splits)
    assert kinds.count("Mul") - before.count("Mul") == (0 if of_weight else len(splits))
    weights = {model.graph.by_name[n].inputs[1] for split in splits for n in split.readers}
    assert found.stale == weights


def test_layers_that_read_one_tensor_share_its_channels() -> None:
    b = Builder(0)
    one, other = b.linear("x", 8, 4), b.linear("x", 8, 4)
    model = b.model(TOKENS, b.add("Add", one, other))
    readers = tuple(n.name for n in model.graph.nodes if n.op_type == "MatMul")
    parts = np.array([2, 1, 1, 1, 1, 1, 4, 1])
    split = Split("x", readers, parts)
    assert split.added == pytest.approx(4 / 8)
    found = split_inputs(model.graph, [split])
    assert [n.op_type for n in found.proto.graph.node].count("Gather") == 1
    largest = np.abs(next(iter(run(model.graph.proto, model).values()))).max()
    for tensor, values in run(found.proto, model).items():
        expected = run(model.graph.proto, model)[tensor]
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-5 * largest)


def test_the_weight_is_repeated_along_what_is_read() -> None:
    b = Builder(0)
    flat = b.add("Flatten", b.add("GlobalAveragePool", b.conv("x", 3, 8)))
    model = b.model(IMAGES, b.gemm(flat, 8, 5))
    conv, gemm = (n for n in model.graph.nodes if n.op_type in ("Conv", "Gemm"))
    assert [weight_input_axis(model.graph, n) for n in (conv, gemm)] == [1, 1]
