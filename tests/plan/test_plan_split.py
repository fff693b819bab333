"""Channels in parts: the same function, and what may lie between the layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import checker
from repair_networks import IMAGES, TOKENS, Builder

from qdebug.backends.simulation import SimulationBackend
from qdebug.network.graph import Graph
from qdebug.network.prepare import Model
from qdebug.plan.correspond import align
from qdebug.plan.rewrite.split import Split, Way, split_channels, way_to


def run(proto: Any, model: Model) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    feeds = {
        spec.name: rng.normal(size=[3 if not isinstance(d, int) else d for d in spec.shape]).astype(
            np.float32
        )
        for spec in model.graph.inputs
    }
    return dict(SimulationBackend(1).open(proto, ()).run(feeds))


def convolutions() -> Model:
    """Three in a row, the second a reader and a writer, with a pool between."""
    b = Builder(0)
    first = b.add("LeakyRelu", b.conv("x", 3, 8), alpha=0.2)
    pooled = b.add("MaxPool", first, kernel_shape=[2, 2], strides=[2, 2])
    second = b.add("Relu", b.conv(pooled, 8, 6, bias=False))
    return b.model(IMAGES, b.conv(second, 6, 4, size=1))


def tokens() -> Model:
    """Products with biases behind them, two readers of one tensor."""
    b = Builder(1)
    hidden = b.add("Relu", b.linear("x", 8, 16))
    one, other = b.linear(hidden, 16, 16), b.linear(hidden, 16, 16)
    return b.model(TOKENS, b.linear(b.add("Relu", one), 16, 4), other)


def dense() -> Model:
    """Gemm to Gemm."""
    b = Builder(2)
    return b.model({"x": ("N", 8)}, b.gemm(b.add("Relu", b.gemm("x", 8, 12)), 12, 5))


def bent() -> Model:
    """Something between that gives no part for a part."""
    b = Builder(3)
    hidden = b.add("Softplus", b.linear("x", 8, 16))
    return b.model(TOKENS, b.linear(hidden, 16, 4))


def ways(model: Model) -> list[Way]:
    found = (way_to(model.graph, t) for t in model.graph.producers)
    return [way for way in found if way is not None]


NETWORKS: dict[Callable[[], Model], int] = {convolutions: 2, tokens: 2, dense: 1, bent: 1}


@pytest.mark.parametrize("of_weight", [False, True])
@pytest.mark.parametrize("make", NETWORKS, ids=lambda f: f.__name__)
def test_the_network_computes_the_same(make: Callable[[], Model], of_weight: bool) -> None:
    model = make()
    rng = np.random.default_rng(0)
    found = ways(model)
    assert len(found) == NETWORKS[make]
    splits = []
    for way in found:
        if of_weight or way.homogeneous:
            weight = model.graph.constant(model.graph.by_name[way.readers[0]].inputs[1])
            assert weight is not None
            count = weight.shape[1 if weight.ndim > 2 or make is dense else 0]
            splits.append(Split(way, 2 ** rng.integers(0, 3, count), of_weight))
    assert splits or make is bent
    result = split_channels(model.graph, splits)
    checker.check_model(result.proto, full_check=True)
    assert [n.op_type for n in result.proto.graph.node] == [n.op_type for n in model.graph.nodes]
    expected = run(model.graph.proto, model)
    for tensor, values in run(result.proto, model).items():
        largest = np.abs(expected[tensor]).max()
        np.testing.assert_allclose(values, expected[tensor], rtol=0, atol=1e-5 * largest)
    products = {n for split in splits for n in (*split.way.readers, split.way.writer)}
    weights = {model.graph.by_name[n].inputs[1] for n in products}
    inner = {split.way.tensor for split in splits}
    assert weights | inner <= result.stale
    assert not result.stale & {"x", *model.graph.outputs}
    wide = sum(int(split.parts.sum()) - len(split.parts) for split in splits)
    assert wide > 0 or make is bent


WAY = Way("t", "a", ("b",), (), True)


def test_parts_sum_up_and_fill_a_tile() -> None:
    split = Split(WAY, np.array([1, 4, 2]))
    values = np.array([[3.0, 4.0, 5.0]])
    found = split.repeated(values, 1, divided=True)
    np.testing.assert_array_equal(found[0, :7], [3, 1, 1, 1, 1, 2.5, 2.5])
    assert found.shape == (1, 32) and not found[0, 7:].any()
    whole = split.repeated(values, 1, divided=False)
    np.testing.assert_array_equal(whole[0, :7], [3, 4, 4, 4, 4, 5, 5])


@pytest.mark.parametrize(
    ("channels", "more", "added"),
    [(1024, 1, 1 / 32), (1024, 32, 1 / 32), (64, 3, 0.5), (40, 24, 0.0), (40, 25, 0.5)],
)
def test_work_is_that_of_whole_tiles(channels: int, more: int, added: float) -> None:
    parts = np.ones(channels, np.int64)
    parts[:more] = 2
    assert Split(WAY, parts).added == pytest.approx(added)


def read_elsewhere(b: Builder) -> str:
    hidden = b.add("Relu", b.linear("x", 8, 8))
    return b.add("Add", b.linear(hidden, 8, 8), hidden)


def an_output(b: Builder) -> str:
    b.add("Relu", b.linear("x", 8, 8))
    return b.nodes[-1].output[0]


def normalized(b: Builder) -> str:
    return b.linear(b.norm(b.linear("x", 8, 8), 8), 8, 4)


def gated(b: Builder) -> str:
    return b.linear(b.silu(b.linear("x", 8, 8)), 8, 4)


def scaled_by_channel(b: Builder) -> str:
    hidden = b.add("Mul", b.linear("x", 8, 8), b.constant(b.magnitudes(8)))
    return b.linear(hidden, 8, 4)


def added_over_tokens(b: Builder) -> str:
    hidden = b.add("Add", b.linear("x", 8, 6), b.constant(b.rng.normal(size=(6, 6))))
    return b.linear(hidden, 6, 4)


@pytest.mark.parametrize(
    "write",
    [read_elsewhere, an_output, normalized, gated, scaled_by_channel, added_over_tokens],
    ids=lambda f: f.__name__,
)
def test_what_does_not_treat_channels_alike_or_alone_is_no_way(
    write: Callable[[Builder], str],
) -> None:
    b = Builder(0)
    result = write(b)
    extra = [b.linear(result, 8, 4)] if write is an_output else []
    assert ways(b.model(TOKENS, result, *extra)) == []


def test_groups_are_no_way() -> None:
    b = Builder(0)
    wide = b.add("Relu", b.conv("x", 3, 8))
    spatial = b.add("Relu", b.conv(wide, 8, 8, groups=8))
    assert ways(b.model(IMAGES, b.conv(spatial, 8, 4))) == []


@pytest.mark.parametrize("make", [convolutions, tokens, dense], ids=lambda f: f.__name__)
def test_what_has_other_channels_is_no_counterpart(make: Callable[[], Model]) -> None:
    model = make()
    way = ways(model)[0]
    count = model.graph.shapes[way.tensor][1 if make is convolutions else -1]
    assert isinstance(count, int)
    wide = split_channels(model.graph, [Split(way, np.full(count, 2))])
    found = align(model.graph, Graph(onnx.shape_inference.infer_shapes(wide.proto)))
    matched = {m.tensor for m in found.matches}
    inner = model.graph.by_name[way.writer].outputs[0]
    assert not matched & {way.tensor, inner}
    assert set(model.graph.outputs) <= matched
