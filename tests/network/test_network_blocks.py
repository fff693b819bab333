"""The blocks of transformers, told by structure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from qdebug.network.blocks import transformer_blocks
from qdebug.network.graph import Graph
from qdebug.network.layers import find_layers

F = onnx.TensorProto.FLOAT
DATA = Path(__file__).parents[2] / "calib_data"


def found_in(proto: onnx.ModelProto) -> dict[str, tuple[str, ...]]:
    graph = Graph.inferred(proto)
    return {b.name: b.layers for b in transformer_blocks(graph, find_layers(graph))}


def decoder(*, post_norm: bool) -> onnx.ModelProto:
    """One layer: attention to what an encoder gives, and an MLP, beside residual connections."""
    weights = {name: np.eye(4, dtype=np.float32) for name in ("q", "k", "v", "o", "up", "down")}
    normed = {"attend": "x", "mlp": "middle"} if post_norm else {"attend": "n1", "mlp": "n2"}
    nodes = [
        ("Sin", "n1", ["x"]),  # stands for a normalization
        ("MatMul", "a/q", [normed["attend"], "q"]),
        ("MatMul", "a/k", ["memory", "k"]),
        ("MatMul", "a/v", ["memory", "v"]),
        ("Transpose", "kt", ["a/k"]),
        ("MatMul", "a/qk", ["a/q", "kt"]),
        ("Softmax", "p", ["a/qk"]),
        ("MatMul", "a/pv", ["p", "a/v"]),
        ("MatMul", "a/o", ["a/pv", "o"]),
        ("Add", "sum", ["x", "a/o"]),
        ("Sin" if post_norm else "Identity", "middle", ["sum"]),
        ("Sin", "n2", ["middle"]),
        ("MatMul", "b/up", [normed["mlp"], "up"]),
        ("Relu", "r", ["b/up"]),
        ("MatMul", "b/down", ["r", "down"]),
        ("Add", "end", ["b/down", "middle"]),
        ("MatMul", "head", ["end", "q"]),
    ]
    values = [helper.make_tensor_value_info(n, F, [4, 4]) for n in ("x", "memory", "head")]
    made = [
        helper.make_node(kind, reads, [out], name=out)
        for kind, out, reads in nodes
        if not post_norm or out not in ("n1", "n2")
    ]
    graph = helper.make_graph(
        made,
        "decoder",
        values[:2],
        values[2:],
        [numpy_helper.from_array(w, name) for name, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_convolutions_beside_a_residual_connection_are_no_block() -> None:
    names = {"digits_cnn": 0, "digits_encoder": 6}
    assert {name: len(found_in(onnx.load(DATA / f"{name}.onnx"))) for name in names} == names


@pytest.mark.parametrize("post_norm", [False, True])
def test_a_decoder_has_attention_with_its_keys_and_an_mlp(post_norm: bool) -> None:
    assert found_in(decoder(post_norm=post_norm)) == {
        "attention 1 (a)": ("a/q", "a/k", "a/v", "a/qk", "a/pv", "a/o"),
        "MLP 1 (b)": ("b/up", "b/down"),
    }
