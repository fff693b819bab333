"""Names: any node has a unique one, the user's own where possible, and maps back to the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from onnx import TensorProto, helper

from qdebug.network.load import ModelFile
from qdebug.network.prepare import Model, prepare_model, unnamed_notes

ODD = ["层/卷积:0", "a;b", "x" * 300, "/model/conv1/Conv", "::", "ä b\tc", "name with\nbreak", "🙂"]


def names(model: Model) -> list[str]:
    return [n.name for n in model.graph.nodes]


@pytest.mark.parametrize("opset", [9, 13])
@pytest.mark.parametrize("odd", ODD)
def test_odd_names_are_kept(net: Any, same_outputs: Any, odd: str, opset: int) -> None:
    t = f"{odd}_t"
    n = net(opset).conv("x", t, name=odd, weight=f"{odd}_w").batch_norm(t, f"{odd}_b", f"{odd}_bn")
    model = same_outputs(n.add("Relu", f"{odd}_b", "y", f"{odd}_r").model())
    assert names(model) == [odd, f"{odd}_r"]
    assert model.origins == {odd: (odd, f"{odd}_bn"), f"{odd}_r": (f"{odd}_r",)}
    assert model.graph.nodes[0].outputs == (f"{odd}_b",)


def test_empty_names(net: Any, same_outputs: Any) -> None:
    model = same_outputs(net().add("Relu", "x", "a").add("Neg", "a", "y").model())
    assert names(model) == ["Relu_a", "Neg_y"]
    assert model.origins == {"Relu_a": ("Relu_a",), "Neg_y": ("Neg_y",)}
    (note,) = unnamed_notes(model, ["Relu_a", "Neg_y", "other"])
    assert note.startswith("2 of 3 layers have no name in the file") and "writes 'a'" in note
    assert unnamed_notes(model, ["other"]) == ()


def test_duplicates_map_back(net: Any, prepared: Callable[..., Model]) -> None:
    n = net().add("Relu", "x", "a", "same").add("Neg", "a", "b", "same")
    model = prepared(n.add("Abs", "b", "y", "same").model())
    assert names(model) == ["same", "same_1", "same_2"]
    assert set(model.origins.values()) == {("same",)}


def test_a_made_up_name_gives_way_to_the_users(net: Any, same_outputs: Any) -> None:
    n = net().add("Relu", "x", "a").add("Neg", "a", "b", "Relu_a").add("Abs", "b", "y", "Relu_a_1")
    model = same_outputs(n.model())
    assert names(model)[1:] == ["Relu_a", "Relu_a_1"]
    assert names(model)[0] == "Relu_a_2"


def test_a_renamed_duplicate_gives_way_to_the_users(net: Any, prepared: Any) -> None:
    n = net().add("Relu", "x", "a", "n").add("Neg", "a", "b", "n").add("Abs", "b", "y", "n_1")
    model = prepared(n.model())
    assert names(model) == ["n", "n_2", "n_1"]
    assert model.origins == {"n": ("n",), "n_2": ("n",), "n_1": ("n_1",)}


def test_duplicates_that_fold(net: Any, prepared: Callable[..., Model]) -> None:
    n = net().conv("x", "a", name="n").batch_norm("a", "b", "n").add("Relu", "b", "r", "n")
    n.random("w2", 4, 4, 1, 1).add("Conv", "r,w2", "c", "n").batch_norm("c", "y", "n")
    model = prepared(n.model())
    assert names(model) == ["n", "n_2", "n_3"]
    assert model.origins == {"n": ("n", "n"), "n_2": ("n",), "n_3": ("n", "n")}


def test_a_first_output_that_is_absent(net: Any, same_outputs: Any) -> None:
    n = net().random("w", 1, 8, 3).random("r", 1, 8, 2)
    proto = n.add("LSTM", "x,w,r", ",y", hidden_size=2).model(shape=(4, 1, 3), rank=3)
    assert names(same_outputs(proto)) == ["LSTM_y"]


def test_the_users_file_is_not_modified(net: Any, prepared: Callable[..., Model]) -> None:
    n = net(10, ir_version=3).conv("x", "a", name="n").batch_norm("a", "b", "n")
    proto = n.add("Softmax", "b", "y").model()
    model = prepared(proto)
    assert model.file.proto == proto


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(["", "n", "n_1", "n_2", "Relu_t1", "Relu_t2_1", "ü/:"]), min_size=1)
)
def test_any_names_become_unique_and_stay_stable(given_names: list[str]) -> None:
    nodes = [
        helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"], name=name)
        for i, name in enumerate(given_names)
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("t0", TensorProto.FLOAT, [2])],
        [value(f"t{i}", TensorProto.FLOAT, [2]) for i in range(1, len(nodes) + 1)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    model, again = (prepare_model(ModelFile(None, proto, "", "")) for _ in range(2))
    found = names(model)
    assert len(set(found)) == len(found) == len(given_names)
    assert found == names(again)
    for original, name in zip(given_names, found, strict=True):
        assert model.origins[name] == (original or name,)
    for original in filter(None, given_names):
        assert original in found  # the first of that name keeps it


def test_subgraph_nodes_keep_their_names(net: Any, same_outputs: Any) -> None:
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, [None] * 4)
    body = helper.make_graph([helper.make_node("Relu", ["x"], ["o"], "same")], "b", [], [out])
    n = net().add("ReduceMax", "x", "m", "same", keepdims=0).const("zero", np.float32(0))
    n.add("Greater", "m,zero", "c")
    proto = n.add("If", "c", "y", "if", then_branch=body, else_branch=body).model()
    model = same_outputs(proto)
    inner = model.graph.proto.graph.node[-1]
    assert isinstance(inner, onnx.NodeProto) and inner.attribute[0].g.node[0].op_type == "Relu"
