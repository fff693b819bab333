"""The branch that stands in the place of an If computes what that did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from control_flow import (
    BOOL,
    constant,
    model_of,
    value,
    voice_net,
    voice_samples,
    weights,
)
from onnx import helper, numpy_helper

from qdebug.network.prepare import Model, with_taken

Prepared = Callable[..., Model]
Execute = Callable[..., list[np.ndarray[Any, Any]]]
node = helper.make_node


@pytest.fixture
def same(prepared: Prepared, execute: Execute) -> Callable[..., Model]:
    """Replace what is taken; nothing else than that changes."""

    def check(proto: onnx.ModelProto, taken: dict[str, str], feeds: Any) -> Model:
        model = with_taken(prepared(proto), taken)
        onnx.checker.check_model(model.graph.proto, full_check=True)
        assert not {n.op_type for n in model.graph.nodes} & {"If"}
        names = [n.name for n in model.graph.nodes]
        assert all(names) and len(set(names)) == len(names) and set(model.origins) == set(names)
        assert [o.name for o in proto.graph.output] == list(model.graph.outputs)
        expected, found = execute(proto, feeds), execute(model.graph.proto, feeds)
        for want, got in zip(expected, found, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
            assert got.shape == want.shape and got.dtype == want.dtype
        return model

    return check


@pytest.mark.parametrize("opset", [11, 16, 17])
@pytest.mark.parametrize("rate", [16000, 8000])
@pytest.mark.parametrize("length", [256, 8])
def test_nested_branches(same: Any, rate: int, length: int, opset: int) -> None:
    outer = "then_branch" if rate == 16000 else "else_branch"
    steps = length // (4 if rate == 16000 else 2)
    inner = "then_branch" if steps > 4 else "else_branch"
    proto = voice_net(16)
    if opset != 16:
        proto.opset_import[0].version = max(opset, 13)  # Squeeze has its axes as an input
    feeds = voice_samples(1, rate, length)[0]
    model = same(proto, {"rate_if": outer, "inner": inner}, feeds)
    assert {"conv", "lstm", "out"} <= set(model.graph.by_name)
    assert ("deep" in model.graph.by_name) == (inner == "then_branch")
    assert model.taken == {"rate_if": outer, "inner": inner}
    held = {t.name for t in model.graph.proto.graph.initializer}
    assert model.graph.constant("conv_w") is not None
    assert "rate" not in held  # only the condition read it


def test_an_inner_if_that_is_not_taken_stays(prepared: Prepared, execute: Execute) -> None:
    feeds = voice_samples(1)[0]
    model = with_taken(prepared(voice_net()), {"rate_if": "then_branch"})
    assert [n.name for n in model.graph.nodes if n.op_type == "If"] == ["inner"]
    want, got = execute(voice_net(), feeds), execute(model.graph.proto, feeds)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5)


def if_net(then: onnx.GraphProto, other: onnx.GraphProto, outputs: Sequence[str]) -> Any:
    """An If over x > 0 in the mean, which shares names with the graph around it."""
    nodes = [
        node("ReduceMean", ["x"], ["m"], "mean", keepdims=0),
        node("Greater", ["m", "zero"], ["positive"], "greater"),
        node("Abs", ["x"], ["a"], "shared"),
        node("If", ["positive"], [*outputs], "choice", then_branch=then, else_branch=other),
        node("Add", [next(filter(None, outputs)), "a"], ["sum"], "after"),
    ]
    held = [numpy_helper.from_array(np.float32(0), "zero")]
    shown = [value("sum", [None, 3]), *(value(o, [None, 3]) for o in outputs if o)]
    return model_of(helper.make_graph(nodes, "g", [value("x", ["n", 3])], shown, held), 16)


def branch(nodes: Any, outputs: Sequence[str], held: Any = ()) -> onnx.GraphProto:
    return helper.make_graph(nodes, "b", [], [value(o) for o in outputs], held)


@pytest.mark.parametrize("sign", [1, -1])
def test_outputs_of_a_branch(same: Any, sign: int) -> None:
    """An initializer, a Constant node, one that nobody reads."""
    row = numpy_helper.from_array(np.ones((1, 3), np.float32), "row")
    twice = branch([node("Neg", ["a"], ["n"], "shared")], ["n", "row"], [row])
    plain = branch(
        [constant("k", np.full((1, 3), 2, np.float32)), node("Neg", ["x"], ["u"], "neg")],
        ["u", "k"],
    )
    taken = "then_branch" if sign > 0 else "else_branch"
    feeds = {"x": sign * np.ones((2, 3), np.float32)}
    model = same(if_net(twice, plain, ["p", "q"]), {"choice": taken}, feeds)
    assert ("shared_1" in model.graph.by_name) == (sign > 0)  # the graph's own keeps its name


def test_two_ifs_with_the_same_names_inside(same: Any) -> None:
    def one(seed: int) -> onnx.GraphProto:
        nodes = [node("MatMul", ["t", "w"], ["t2"], "fc"), node("Relu", ["t2"], ["r"], "act")]
        before = [node("Neg", ["source"], ["t"], "neg")]
        for b in before:
            b.input[0] = "x" if seed < 2 else "first"
        return branch([*before, *nodes], ["r"], weights(seed, w=(3, 3)))

    nodes = [
        node("If", ["c"], ["first"], "one", then_branch=one(0), else_branch=one(1)),
        node("If", ["c"], ["y"], "two", then_branch=one(2), else_branch=one(3)),
    ]
    inputs = [value("x", [1, 3]), value("c", [], BOOL)]
    proto = model_of(helper.make_graph(nodes, "g", inputs, [value("y", [1, 3])]), 16)
    feeds = {"x": np.ones((1, 3), np.float32), "c": np.array(False)}
    model = same(proto, {"one": "else_branch", "two": "else_branch"}, feeds)
    assert {"fc", "fc_1"} <= set(model.graph.by_name)
    assert {n.inputs[1] for n in model.graph.nodes if n.op_type == "MatMul"} == {"w", "w_1"}


def test_batch_norm_in_a_branch_is_folded(same: Any) -> None:
    rng = np.random.default_rng(0)
    held = weights(0, w=(4, 3, 1, 1))
    held += [
        numpy_helper.from_array(rng.uniform(0.5, 2, 4).astype(np.float32), n)
        for n in ("scale", "shift", "mean", "var")
    ]
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv"),
        node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["b"], "bn"),
    ]
    other = branch([node("Conv", ["x", "w2"], ["b2"], "conv")], ["b2"], weights(1, w2=(4, 3, 1, 1)))
    proto = model_of(
        helper.make_graph(
            [
                node(
                    "If", ["flag"], ["y"], "if", then_branch=branch(nodes, ["b"], held),
                    else_branch=other,
                )
            ],
            "g",
            [value("x", [1, 3, 4, 4]), value("flag", [], BOOL)],
            [value("y", [1, 4, 4, 4])],
        ),
        16,
    )  # fmt: skip
    feeds = {"x": rng.normal(size=(1, 3, 4, 4)).astype(np.float32), "flag": np.array(True)}
    model = same(proto, {"if": "then_branch"}, feeds)
    assert [n.op_type for n in model.graph.nodes] == ["Conv"]
    assert model.origins["conv"] == ("conv", "bn")
