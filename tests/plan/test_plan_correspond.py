"""Which tensor stands for which: renamed, folded, fused, absorbed, and false friends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from qdebug.network.graph import Graph
from qdebug.plan.correspond import Alignment, How, align

F32 = np.float32


def _weights(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=s).astype(F32) for s in shapes]


def _aligned(kit: SimpleNamespace, reference: Any, quantized: Any) -> Alignment:
    return align(kit.model_of(reference).graph, kit.model_of(quantized).graph)


def _pairs(found: Alignment) -> dict[str, str]:
    return {m.tensor: m.candidate for m in found.matches}


def _pair(kit: SimpleNamespace, tensor: str, scale: str = "s") -> list[Any]:
    codes, values = f"{tensor}_q", f"{tensor}_dq"
    return [
        kit.node("QuantizeLinear", [tensor, scale, "z"], [codes], f"{tensor}:q"),
        kit.node("DequantizeLinear", [codes, scale, "z"], [values], f"{tensor}:dq"),
    ]


GRID = {"s": np.array(0.05, F32), "z": np.array(0, np.int8)}


def test_everything_renamed(kit: SimpleNamespace) -> None:
    """Names say nothing, or the opposite: each model has the other's names elsewhere."""
    w1, w2, b = _weights((4, 3, 3, 3), (4, 4, 1, 1), (4,))
    node = kit.node
    reference = kit.make(
        [
            node("Conv", ["x", "w1", "b"], ["one"], "first"),
            node("Sigmoid", ["one"], ["two"], "gate"),
            node("Conv", ["two", "w2"], ["three"], "second"),
            node("Add", ["three", "two"], ["y"], "sum"),
        ],
        {"x": (1, 3, 6, 6)}, ["y"], {"w1": w1, "w2": w2, "b": b},
    )  # fmt: skip
    quantized = kit.make(
        [
            *_pair(kit, "x"),
            node("Conv", ["x_dq", "v1", "b"], ["three"], "second"),
            node("Sigmoid", ["three"], ["one"], "n1"),
            *_pair(kit, "one"),
            node("Conv", ["one_dq", "v2"], ["two"], "first"),
            node("Add", ["one_dq", "two"], ["y"], "n2"),
        ],
        {"x": (1, 3, 6, 6)}, ["y"], {"v1": w1, "v2": w2, "b": b, **GRID},
    )  # fmt: skip
    found = _aligned(kit, reference, quantized)
    assert _pairs(found) == {"one": "three", "two": "one", "three": "two", "y": "y"}
    assert {m.how for m in found.matches[:3]} == {How.STRUCTURE} and not found.unmatched
    by_name = found.graph.by_name
    assert by_name["first"].outputs == ("one",) and by_name["second"].outputs == ("three",)
    x = np.random.default_rng(1).normal(size=(1, 3, 6, 6)).astype(F32)
    before, after = kit.run(quantized, {"x": x}), kit.run(found.graph, {"x": x})
    np.testing.assert_array_equal(before["y"], after["y"])


def test_a_constant_with_the_name_of_a_tensor_of_the_other(kit: SimpleNamespace) -> None:
    """Converters make names up by counting, and count differently in each model."""
    (w,) = _weights((4, 3, 3, 3))
    node = kit.node
    reference = kit.make(
        [node("Conv", ["x", "w"], ["_v_7"], "conv"), node("Relu", ["_v_7"], ["y"], "act")],
        {"x": (1, 3, 6, 6)}, ["y"], {"w": w},
    )  # fmt: skip
    quantized = kit.make(
        [
            *_pair(kit, "x"),
            node("Conv", ["x_dq", "_v_7"], ["_v_9"], "conv"),
            node("Relu", ["_v_9"], ["y"], "act"),
        ],
        {"x": (1, 3, 6, 6)}, ["y"], {"_v_7": w, **GRID},
    )  # fmt: skip
    found = _aligned(kit, reference, quantized)
    assert _pairs(found) == {"_v_7": "_v_9", "y": "y"}
    x = np.random.default_rng(1).normal(size=(1, 3, 6, 6)).astype(F32)
    before, after = kit.run(quantized, {"x": x}), kit.run(found.graph, {"x": x})
    np.testing.assert_array_equal(before["y"], after["y"])


def test_parallel_branches_are_told_by_their_weights(kit: SimpleNamespace) -> None:
    wq, wk, wv = _weights((8, 8), (8, 8), (8, 8))
    node = kit.node

    def build(order: str, constants: dict[str, Any]) -> Any:
        nodes = [node("MatMul", ["x", f"w{p}"], [f"o{p}"], f"n{p}") for p in order]
        return kit.make([*nodes, node("Sum", [f"o{p}" for p in order], ["y"], "sum")],
                        {"x": (2, 8)}, ["y"], constants)  # fmt: skip

    reference = build("qkv", {"wq": wq, "wk": wk, "wv": wv})
    rounded = {n: np.round(w * 20).astype(F32) / 20 for n, w in (("a", wv), ("b", wq), ("c", wk))}
    found = _aligned(kit, reference, build("abc", {f"w{n}": w for n, w in rounded.items()}))
    assert _pairs(found) == {"oq": "ob", "ok": "oc", "ov": "oa", "y": "y"}


def test_equal_branches_stay_unmatched(kit: SimpleNamespace) -> None:
    (w,) = _weights((8, 8))
    node = kit.node

    def build(p: str) -> Any:
        nodes = [node("MatMul", ["x", f"w{p}{i}"], [f"o{p}{i}"], f"n{p}{i}") for i in (1, 2)]
        nodes += [node("Sum", [f"o{p}1", f"o{p}2"], ["y"], f"{p}sum")]
        return kit.make(nodes, {"x": (2, 8)}, ["y"], {f"w{p}1": w, f"w{p}2": w})

    found = _aligned(kit, build("a"), build("b"))
    assert [u.tensor for u in found.unmatched] == ["oa1", "oa2"]
    assert "several" in found.unmatched[0].reason and _pairs(found) == {"y": "y"}


def test_batch_normalization_that_only_one_side_has_folded(kit: SimpleNamespace) -> None:
    w, gamma, beta, mean = _weights((4, 3, 3, 3), (4,), (4,), (4,))
    variance = np.array([0.5, 1, 2, 4], F32)
    factor = gamma / np.sqrt(variance + 1e-5)
    node = kit.node
    reference = kit.make(
        [node("Conv", ["x", "w", "b"], ["bn_out"], "conv"), node("Relu", ["bn_out"], ["y"], "r")],
        {"x": (1, 3, 6, 6)}, ["y"],
        {"w": w * factor.reshape(-1, 1, 1, 1), "b": beta - mean * factor},
    )  # fmt: skip
    quantized = kit.make(
        [
            *_pair(kit, "x"),
            node("Conv", ["x_dq", "w"], ["c"], "c1"),
            *_pair(kit, "c"),
            node("BatchNormalization", ["c_dq", "g", "be", "m", "v"], ["n"], "bn"),
            node("Relu", ["n"], ["y"], "r1"),
        ],
        {"x": (1, 3, 6, 6)}, ["y"],
        {"w": w, "g": gamma, "be": beta, "m": mean, "v": variance, **GRID},
    )  # fmt: skip
    assert _pairs(_aligned(kit, reference, quantized)) == {"bn_out": "n", "y": "y"}


def test_batch_normalization_behind_an_activation_that_was_absorbed(kit: SimpleNamespace) -> None:
    """The FP32 model has it too, though not directly behind the product."""
    w1, w2, *norm = _weights((4, 3, 3, 3), (4, 4, 1, 1), (4,), (4,), (4,), (4,))
    node = kit.node
    named = dict(zip(["g", "be", "m", "v"], norm, strict=True))
    reference = kit.make(
        [
            node("Conv", ["x", "w1"], ["c"], "conv1"),
            node("Relu", ["c"], ["r"], "relu1"),
            node("BatchNormalization", ["r", *named], ["n"], "bn"),
            node("Conv", ["n", "w2"], ["y"], "conv2"),
        ],
        {"x": (1, 3, 6, 6)}, ["y"], {"w1": w1, "w2": w2, **named},
    )  # fmt: skip
    quantized = kit.make(
        [
            *_pair(kit, "x"),
            node("Conv", ["x_dq", "w1"], ["r"], "conv1"),
            *_pair(kit, "r", "s0"),
            node("BatchNormalization", ["r_dq", *named], ["n"], "bn"),
            *_pair(kit, "n"),
            node("Conv", ["n_dq", "w2"], ["y"], "conv2"),
        ],
        {"x": (1, 3, 6, 6)}, ["y"],
        {"w1": w1, "w2": w2, **named, **GRID, "s0": np.array(0.05, F32)},
    )  # fmt: skip
    zero = next(n for n in quantized.graph.node if n.input[:2] == ["r", "s0"])
    zero.input[2] = "low"
    back = next(n for n in quantized.graph.node if n.output[0] == "r_dq")
    back.input[2] = "low"
    quantized.graph.initializer.append(numpy_helper.from_array(np.array(-128, np.int8), "low"))
    found = _aligned(kit, reference, quantized)
    assert _pairs(found) == {"c": "r", "r": "r", "n": "n", "y": "y"}
    assert [a.node for a in found.absorbed] == ["relu1"]


@pytest.mark.parametrize("fused", ["reference", "quantized"])
def test_a_bias_within_or_after_the_product(kit: SimpleNamespace, fused: str) -> None:
    w, b = _weights((8, 4), (4,))
    node = kit.node
    gemm = [node("Gemm", ["x", "w", "b"], ["g"], "fc"), node("Tanh", ["g"], ["y"], "t")]
    apart = [
        node("MatMul", ["x", "w"], ["m"], "mm"),
        node("Add", ["m", "b"], ["a"], "bias"),
        node("Tanh", ["a"], ["y"], "t"),
    ]
    models = [kit.make(n, {"x": (2, 8)}, ["y"], {"w": w, "b": b}) for n in (gemm, apart)]
    if fused == "reference":
        assert _pairs(_aligned(kit, *models)) == {"g": "a", "y": "y"}
        return
    found = _aligned(kit, models[1], models[0])
    assert _pairs(found) == {"a": "g", "y": "y"}
    assert [u.tensor for u in found.unmatched] == ["m"] and "'fc'" in found.unmatched[0].reason


def test_a_product_behind_what_was_rewritten(kit: SimpleNamespace) -> None:
    w1, w2 = _weights((8, 8), (8, 8))
    node = kit.node
    reference = kit.make(
        [
            node("MatMul", ["x", "w1"], ["a"], "one"),
            node("HardSwish", ["a"], ["h"], "swish"),
            node("MatMul", ["h", "w2"], ["y"], "two"),
        ],
        {"x": (2, 8)}, ["y"], {"w1": w1, "w2": w2},
    )  # fmt: skip
    quantized = kit.make(
        [
            node("MatMul", ["x", "v1"], ["p"], "n1"),
            node("HardSigmoid", ["p"], ["g"], "n2", alpha=1 / 6),
            node("Mul", ["p", "g"], ["m"], "n3"),
            node("MatMul", ["m", "v2"], ["y"], "n4"),
        ],
        {"x": (2, 8)}, ["y"], {"v1": w1, "v2": w2},
    )  # fmt: skip
    found = _aligned(kit, reference, quantized)
    assert _pairs(found) == {"a": "p", "y": "y"} and [u.tensor for u in found.unmatched] == ["h"]


def test_an_activation_that_nothing_takes_the_place_of(kit: SimpleNamespace) -> None:
    (w,) = _weights((8, 8))
    node = kit.node
    reference = kit.make(
        [
            node("MatMul", ["x", "w"], ["m"], "mm"),
            node("Relu", ["m"], ["r"], "relu"),
            node("MatMul", ["r", "w"], ["y"], "last"),
        ],
        {"x": (2, 8)}, ["y"], {"w": w},
    )  # fmt: skip
    quantized = kit.make(
        [
            node("MatMul", ["x", "w"], ["r"], "mm"),
            *_pair(kit, "r"),  # signed: it lets negative values pass
            node("MatMul", ["r_dq", "w"], ["y"], "last"),
        ],
        {"x": (2, 8)}, ["y"], {"w": w, **GRID},
    )  # fmt: skip
    found = _aligned(kit, reference, quantized)
    assert _pairs(found) == {"m": "r", "y": "y"} and not found.absorbed
    assert [u.tensor for u in found.unmatched] == ["r"] and "Relu" in found.unmatched[0].reason
    assert "r" not in found.graph.producers  # a false friend has another name now


def test_a_stored_and_turned_weight(kit: SimpleNamespace) -> None:
    w, other = _weights((8, 4), (8, 4))
    node = kit.node
    reference = kit.make(
        [node("MatMul", ["x", n], [f"o{n}"], f"m{n}") for n in "ab"]
        + [node("Sub", ["oa", "ob"], ["y"], "sub")],
        {"x": (2, 8)}, ["y"], {"a": w, "b": other},
    )  # fmt: skip
    scale = 0.02
    stored = {
        n: np.clip(np.round(v.T / scale), -128, 127).astype(np.int8)
        for n, v in (("c", other), ("d", w))
    }
    nodes = []
    for n in "cd":
        nodes += [
            node("DequantizeLinear", [n, "ws", "z"], [f"{n}f"], f"{n}dq"),
            node("Transpose", [f"{n}f"], [f"{n}t"], f"{n}turn", perm=[1, 0]),
            node("MatMul", ["x", f"{n}t"], [f"p{n}"], f"m{n}"),
        ]
    nodes.append(node("Sub", ["pd", "pc"], ["y"], "sub"))
    constants = {**stored, "ws": np.array(scale, F32), "z": np.array(0, np.int8)}
    quantized = kit.make(nodes, {"x": (2, 8)}, ["y"], constants)
    assert _pairs(_aligned(kit, reference, quantized)) == {"oa": "pd", "ob": "pc", "y": "y"}


def test_the_reference_itself(kit: SimpleNamespace, residual_net: Any) -> None:
    graph = kit.model_of(residual_net(17)).graph
    found = align(graph, graph)
    assert all(m.tensor == m.candidate and m.how is How.NAME for m in found.matches)
    assert not found.unmatched and not found.absorbed
    assert isinstance(found.graph, Graph)
    assert {n.name for n in found.graph.nodes} == {n.name for n in graph.nodes}
    assert numpy_helper.to_array(found.graph.proto.graph.initializer[0]).size
