"""Factors per channel on what layers read, their inverse in the weights: the same function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import checker
from repair_networks import IMAGES, NETWORKS, TOKENS, Builder

from qdebug.backends.simulation import SimulationBackend
from qdebug.network.graph import Graph
from qdebug.network.prepare import Model
from qdebug.plan.rewrite.rescale import (
    Rescaled,
    Stream,
    rescale_inputs,
    rescale_streams,
    streams,
)
from qdebug.plan.rewrite.weights import divided_weight, input_channels, weight_reach


def run(proto: onnx.ModelProto, seed: int = 0) -> dict[str, Any]:
    graph = Graph(proto)
    rng = np.random.default_rng(seed)
    feeds = {
        spec.name: rng.normal(size=[4 if not isinstance(d, int) else d for d in spec.shape]).astype(
            np.float32
        )
        for spec in graph.inputs
    }
    session = SimulationBackend(1).open(proto, ())
    found = dict(session.run(feeds))
    session.close()
    return found


def factors_of(graph: Graph, seed: int, *names: str) -> dict[str, Any]:
    """Random ones for layers, the same for all that read one tensor."""
    found = {}
    for node in graph.nodes:
        count = input_channels(graph, node)
        if count is not None and (not names or node.name in names):
            rng = np.random.default_rng([seed, *node.inputs[0].encode()])
            found[node.name] = np.exp2(rng.uniform(-3, 3, size=count))
    return found


def assert_same(graph: Graph, rescaled: Rescaled) -> None:
    checker.check_model(rescaled.proto, full_check=True)
    before, after = run(graph.proto), run(rescaled.proto)
    assert set(before) == set(after)
    for name, values in before.items():
        largest = np.abs(values).max()
        np.testing.assert_allclose(after[name], values, rtol=0, atol=2e-5 * largest)


def products(model: Model, seed: int = 0, *names: str) -> int:
    rescaled = rescale_inputs(model.graph, factors_of(model.graph, seed, *names))
    assert_same(model.graph, rescaled)
    return rescaled.products


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        ("depthwise-relu", 3),  # of the input, and of what a residual Add reads too
        ("depthwise-silu", 5),  # SiLU commutes with no factor
        ("grouped", 1),  # of the input
        ("residual", 4),
        ("pre-norm", 0),  # normalizations, values and the Relu take all in
        ("post-norm", 2),  # the residual is what the normalizations give
        ("written-out-norm", 0),
        ("shared-weight", 2),  # of the input, and of an output
    ],
)
def test_factors_are_folded_where_that_is_exact(network: str, expected: int) -> None:
    model = NETWORKS[network]()
    assert products(model) == expected


@dataclass
class Chain:
    """Steps over images, one after the other."""

    draw: st.DrawFn
    b: Builder
    x: str = "x"
    channels: int = 3

    def conv(self) -> str:
        return self.to_eight(self.b.conv(self.x, self.channels, 8, bias=self.draw(st.booleans())))

    def sum(self) -> str:
        first = self.b.conv(self.x, self.channels, 8)
        return self.to_eight(self.b.add("Add", first, self.b.conv(self.x, self.channels, 8)))

    def to_eight(self, x: str) -> str:
        self.channels = 8
        return x

    def depthwise(self) -> str:
        return self.b.conv(self.x, self.channels, self.channels, groups=self.channels)

    def pool(self) -> str:
        kind = self.draw(st.sampled_from(["MaxPool", "AveragePool"]))
        return self.b.add(kind, self.x, kernel_shape=[3, 3], pads=[1] * 4)

    def prelu(self) -> str:
        slope = self.b.rng.uniform(0, 0.5, size=(self.channels, 1, 1))
        return self.b.add("PRelu", self.x, self.b.constant(slope))

    def constant(self) -> str:
        kind = self.draw(st.sampled_from(["Add", "Sub", "Mul", "Div"]))
        shapes = [(self.channels, 1, 1), (1, self.channels, 1, 1), (1,), ()]
        shape = self.draw(st.sampled_from(shapes))
        values = self.b.constant(np.asarray(self.b.rng.uniform(1, 2, size=shape)))
        flipped = self.draw(st.booleans()) and kind != "Div"
        return self.b.add(kind, *((values, self.x) if flipped else (self.x, values)))

    def residual(self) -> str:
        return self.b.add("Add", self.x, self.b.conv(self.x, self.channels, self.channels))

    def twice(self) -> str:
        return self.b.add("Add", self.x, self.x)

    def gate(self) -> str:
        inner = self.b.conv(self.x, self.channels, self.channels, size=1)
        return self.b.add("Mul", self.x, self.b.add("Sigmoid", inner))

    def transpose(self) -> str:
        turned = self.b.add("Transpose", self.x, perm=[0, 2, 3, 1])
        inner = self.b.linear(turned, self.channels, self.channels)
        return self.b.add("Transpose", inner, perm=[0, 3, 1, 2])


@st.composite
def chains(draw: st.DrawFn) -> Model:
    """A chain of layers and of what lies between them, with branches."""
    chain = Chain(draw, Builder(draw(st.integers(0, 99))))
    for step in draw(st.lists(st.sampled_from(_STEPS), min_size=1, max_size=6)):
        made = getattr(chain, step, None)
        chain.x = made() if made else chain.b.add(step, chain.x)
    outputs = [chain.b.head(chain.x, chain.channels)]
    if draw(st.booleans()) and chain.x != "x":
        outputs.append(chain.x)
    return chain.b.model(IMAGES, *outputs)


_STEPS = (
    *("conv", "depthwise", "pool", "prelu", "constant", "residual", "twice", "gate", "sum"),
    *("Relu", "LeakyRelu", "Sigmoid", "Identity", "transpose"),
)


@settings(max_examples=60)
@given(chains(), st.integers(0, 99))
def test_the_function_stays_for_any_chain(model: Model, seed: int) -> None:
    products(model, seed)


@settings(max_examples=30)
@given(chains(), st.integers(0, 99), st.data())
def test_the_function_stays_for_any_of_the_layers(model: Model, seed: int, data: Any) -> None:
    names = sorted(factors_of(model.graph, seed))
    chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    products(model, seed, *chosen)


def test_heads_of_an_attention_pass_factors_on_to_the_values() -> None:
    """[N, S, 2·4] -> [N, S, 2, 4] -> [N, 2, S, 4], and back behind the product."""
    b = Builder(3)

    def heads(x: str, order: list[int]) -> str:
        split = b.add("Reshape", b.linear(x, 8, 8), b.constant(np.array([0, 0, 2, 4])))
        return b.add("Transpose", split, perm=order)

    q, k, v = heads("x", [0, 2, 1, 3]), heads("x", [0, 2, 3, 1]), heads("x", [0, 2, 1, 3])
    mixed = b.add("MatMul", b.add("Softmax", b.add("MatMul", q, k)), v)
    joined = b.add("Transpose", mixed, perm=[0, 2, 1, 3])
    flat = b.add("Reshape", joined, b.constant(np.array([0, 0, 8])))
    name = f"matmul{len(b.nodes)}"
    model = b.model(TOKENS, b.linear(flat, 8, 4))
    assert products(model, 0, name) == 0


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_factors_of_a_weight_are_those_of_its_input_channels(groups: int) -> None:
    b = Builder(0)
    graph = b.model(IMAGES, b.conv(b.conv("x", 3, 8), 8, 16, groups=groups)).graph
    node = graph.nodes[-1]
    assert input_channels(graph, node) == 8
    weight = graph.constant(node.inputs[1])
    assert weight is not None
    reach = weight_reach(graph, node)
    for channel in range(8):
        group, inner = divmod(channel, 8 // groups)
        outputs = slice(group * 16 // groups, (group + 1) * 16 // groups)
        assert reach[channel] == np.abs(weight[outputs, inner]).max()
    divided = divided_weight(graph, node, weight, reach)
    np.testing.assert_allclose(
        np.abs(divided).reshape(groups, 16 // groups, -1, 9).max(axis=(1, 3)), 1, rtol=1e-6
    )


def all_streams(model: Model, seed: int) -> list[Stream]:
    graph = model.graph
    found = streams(graph)
    rng = np.random.default_rng(seed)
    factors = [(stream, np.exp2(rng.uniform(-3, 3, size=stream.count))) for stream in found]
    rescaled = rescale_streams(graph, factors)
    assert_same(graph, rescaled)
    ops = [node.op_type for node in rescaled.proto.graph.node]
    assert ops == [node.op_type for node in graph.nodes]  # nothing is added
    for stream in found:  # and every stream is rescaled
        assert {graph.by_name[name].inputs[1] for name in stream.readers} <= rescaled.stale
    return found


@settings(max_examples=60)
@given(chains(), st.integers(0, 99))
def test_streams_are_multiplied_without_a_product(model: Model, seed: int) -> None:
    all_streams(model, seed)


@pytest.mark.parametrize("network", NETWORKS)
def test_streams_of_networks(network: str) -> None:
    all_streams(NETWORKS[network](), 0)


def test_a_residual_stream_is_one_with_all_that_compute_and_read_it() -> None:
    model = NETWORKS["residual"]()
    found = all_streams(model, 0)
    convs = [n.name for n in model.graph.nodes if n.op_type == "Conv"]
    (trunk,) = [s for s in found if convs[0] in s.writers]
    assert set(trunk.writers) == {convs[0], convs[2], convs[4]}
    assert set(trunk.readers) == {convs[1], convs[3], convs[5]}
    assert all((places == np.arange(8)).all() for places in trunk.readers.values())


def test_the_gate_of_a_squeeze_and_excitation_carries_no_factors() -> None:
    b = Builder(0)
    x = b.add("Relu", b.conv("x", 3, 8))
    squeezed = b.add("Relu", b.conv(b.add("GlobalAveragePool", x), 8, 4, size=1))
    gate = b.add("HardSigmoid", b.conv(squeezed, 4, 8, size=1))
    model = b.model(IMAGES, b.conv(b.add("Mul", x, gate), 8, 4))
    convs = [n.name for n in model.graph.nodes if n.op_type == "Conv"]
    wide = next(s for s in all_streams(model, 0) if convs[0] in s.writers)
    assert set(wide.readers) == {convs[1], convs[3]}


def test_a_concatenation_puts_channels_one_after_the_other() -> None:
    b = Builder(0)
    first, second = b.add("Relu", b.conv("x", 3, 8)), b.add("Relu", b.conv("x", 3, 4))
    model = b.model(IMAGES, b.conv(b.add("Concat", first, second, axis=1), 12, 4))
    convs = [n.name for n in model.graph.nodes if n.op_type == "Conv"]
    (stream,) = all_streams(model, 0)
    assert list(stream.writers[convs[1]]) == [8, 9, 10, 11]


def test_a_dense_concatenation_is_read_with_channels_of_others() -> None:
    b = Builder(0)
    first = b.add("Relu", b.conv("x", 3, 8))
    inner = b.add("Relu", b.conv(first, 8, 4))
    model = b.model(IMAGES, b.conv(b.add("Concat", inner, first, axis=1), 12, 4))
    convs = [n.name for n in model.graph.nodes if n.op_type == "Conv"]
    stream = all_streams(model, 0)[0]
    assert list(stream.readers[convs[2]]) == [-1] * 4 + list(range(8))


@pytest.mark.parametrize("breaker", ["Sigmoid", "Clip", "Softmax"])
def test_what_does_not_commute_ends_a_stream(breaker: str) -> None:
    b = Builder(0)
    limits = (b.constant(np.float32(0)), b.constant(np.float32(6))) if breaker == "Clip" else ()
    x = b.conv("x", 3, 8)
    side = b.add(breaker, x, *limits)
    model = b.model(IMAGES, b.conv(x, 8, 4), b.conv(side, 8, 4))
    assert streams(model.graph) == []


def test_a_weight_in_another_type_is_not_divided() -> None:
    b = Builder(0)
    wide = b.add("Cast", "x", to=onnx.TensorProto.DOUBLE)
    weight = b.constant(b.rng.normal(size=(8, 4)))
    b.constants[weight] = b.constants[weight].astype(np.float64)
    inner = b.add("MatMul", wide, weight)
    model = b.model(TOKENS, b.add("Cast", inner, to=onnx.TensorProto.FLOAT))
    (node,) = (n for n in model.graph.nodes if n.op_type == "MatMul")
    assert input_channels(model.graph, node) is None
