"""Opset 9 to the newest: the prepared model gives the outputs of the original."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from refusals import refused

from qdebug.errors import ModelError
from qdebug.network.check import check_structure
from qdebug.network.load import newest_opset
from qdebug.network.prepare import Model

NEWEST = newest_opset()
Tail = Callable[[Any, int], object]
"""Adds nodes from "r" [1, 4, 8, 8] to "y", in the form of the opset."""


def clip(n: Any, v: int) -> None:
    if v < 11:
        n.add("Clip", "r", "y", min=0.1, max=0.9)
    else:
        n.const("lo", np.float32(0.1)).const("hi", np.float32(0.9)).add("Clip", "r,lo,hi", "y")


def clip_one_side(n: Any, v: int) -> None:
    if v < 11:
        n.add("Clip", "r", "y", max=0.9)
    else:
        n.const("hi", np.float32(0.9)).add("Clip", "r,,hi", "y")


def squeeze(n: Any, v: int) -> None:
    if v < 13:
        n.add("Unsqueeze", "r", "u", axes=[0]).add("Squeeze", "u", "y", axes=[0])
    else:
        n.const("ax", np.array([0])).add("Unsqueeze", "r,ax", "u").add("Squeeze", "u,ax", "y")


def slice_(n: Any, v: int) -> None:
    if v < 10:
        n.add("Slice", "r", "y", starts=[1], ends=[5], axes=[2])
    else:
        n.const("s", np.array([1])).const("e", np.array([5])).const("ax", np.array([2]))
        n.add("Slice", "r,s,e,ax", "y")


def pad(n: Any, v: int) -> None:
    if v < 11:
        n.add("Pad", "r", "y", pads=[0, 0, 1, 1, 0, 0, 1, 1], value=0.5)
    else:
        n.const("p", np.array([0, 0, 1, 1, 0, 0, 1, 1])).const("pv", np.float32(0.5))
        n.add("Pad", "r,p,pv", "y")


def softmax(n: Any, v: int) -> None:
    n.add("Softmax", "r", "y", "sm")  # before 13: flattened at axis 1


def softmax_axis(n: Any, v: int) -> None:
    n.add("LogSoftmax", "r", "y", axis=2)


def resize(mode: str, scale: float) -> Tail:
    def tail(n: Any, v: int) -> None:
        n.const("sc", np.array([1, 1, scale, scale], np.float32))
        if v < 10:
            n.add("Upsample", "r,sc", "y", mode=mode)
        elif v < 11:
            n.add("Resize", "r,sc", "y", mode=mode)
        else:
            down = {"nearest_mode": "ceil" if scale < 1 else "floor"} if mode == "nearest" else {}
            n.const("roi", np.zeros(0, np.float32))
            n.add(
                "Resize",
                "r,roi,sc",
                "y",
                mode=mode,
                coordinate_transformation_mode="asymmetric",
                **down,
            )

    return tail


def resize_new_default(n: Any, v: int) -> None:
    n.const("sc", np.array([1, 1, 1.5, 1.5], np.float32)).const("roi", np.zeros(0, np.float32))
    n.add("Resize", "r,roi,sc", "y", mode="linear")


def dropout(n: Any, v: int) -> None:
    if v < 12:
        n.add("Dropout", "r", "d", ratio=0.3)
    else:
        n.const("ratio", np.float32(0.3)).add("Dropout", "r,ratio", "d")
    n.add("Neg", "d", "y")


def reduce_sum(n: Any, v: int) -> None:
    if v < 13:
        n.add("ReduceSum", "r", "y", axes=[1], keepdims=1)
    else:
        n.const("ax", np.array([1])).add("ReduceSum", "r,ax", "y", keepdims=1)


def reduce_mean(n: Any, v: int) -> None:
    if v < 18:
        n.add("ReduceMean", "r", "y", axes=[2, 3])
    else:
        n.const("ax", np.array([2, 3])).add("ReduceMean", "r,ax", "y")


def split(n: Any, v: int) -> None:
    if v < 13:
        n.add("Split", "r", "s1,s2", axis=1, split=[1, 3])
    else:
        n.const("sp", np.array([1, 3])).add("Split", "r,sp", "s1,s2", axis=1)
    n.add("Mul", "s2,s1", "y")


def pools(n: Any, v: int) -> None:
    n.add("MaxPool", "r", "p", kernel_shape=[2, 2]).add(
        "AveragePool", "p", "y", kernel_shape=[2, 2]
    )


def classifier(n: Any, v: int) -> None:
    n.random("gw", 256, 5).random("gb", 5).const("shape", np.array([1, 5, 1, 1]))
    n.add("Flatten", "r", "f").add("Gemm", "f,gw,gb", "fc").add("Reshape", "fc,shape", "y")


def scatter(n: Any, v: int) -> None:
    n.const("si", np.zeros((1, 4, 8, 8), np.int64))
    n.add("Scatter" if v < 11 else "ScatterElements", "r,si,r", "y", axis=1)


def cast(n: Any, v: int) -> None:
    n.add("Cast", "r", "d", to=TensorProto.DOUBLE).add("Cast", "d", "y", to=TensorProto.FLOAT)


def shape_arithmetic(n: Any, v: int) -> None:
    n.const("true", np.array(True))
    n.add("Shape", "r", "s").add("ConstantOfShape", "s", "z").add("Where", "true,r,z", "y")


TAILS: dict[str, Tail] = {
    "clip": clip,
    "clip-one-side": clip_one_side,
    "squeeze": squeeze,
    "slice": slice_,
    "pad": pad,
    "softmax": softmax,
    "softmax-axis": softmax_axis,
    "nearest-2": resize("nearest", 2),
    "nearest-2.6": resize("nearest", 2.6),
    "linear-2": resize("linear", 2),
    "linear-1.7": resize("linear", 1.7),
    "resize-new-default": resize_new_default,
    "dropout": dropout,
    "reduce-sum": reduce_sum,
    "reduce-mean": reduce_mean,
    "split": split,
    "pools": pools,
    "classifier": classifier,
    "scatter": scatter,
    "cast": cast,
    "shape-arithmetic": shape_arithmetic,
}


def network(net: Any, opset: int, tail: Tail) -> onnx.ModelProto:
    n = net(opset, ir_version=3 if opset < 11 else None)
    n.conv("x", "c", name="conv").batch_norm("c", "b", "bn").add("Relu", "b", "r", "relu")
    tail(n, opset)
    return n.model()


@pytest.mark.parametrize("tail", TAILS)
def test_every_opset(net: Any, same_outputs: Callable[..., Model], tail: str) -> None:
    first = 11 if tail == "resize-new-default" else 9  # when half_pixel came
    for opset in range(first, NEWEST + 1):
        proto = network(net, opset, TAILS[tail])
        model = same_outputs(proto)
        assert model.graph.opset == max(13, opset)
        assert model.origins["conv"] == ("conv", "bn"), opset
        assert not any(n.op_type == "BatchNormalization" for n in model.graph.nodes)
        assert [s.name for s in model.graph.inputs] == ["x"]
        onnx.checker.check_model(model.graph.proto, full_check=True)


@pytest.mark.parametrize("opset", [10, 11])
def test_shrinking_by_nearest(net: Any, same_outputs: Callable[..., Model], opset: int) -> None:
    """Opset 9's Upsample cannot shrink."""
    same_outputs(network(net, opset, resize("nearest", 0.6)))
    same_outputs(network(net, opset, resize("linear", 0.6)))


@pytest.mark.parametrize("target", [13, 17, 19, 21])
def test_to_a_newer_opset(net: Any, same_outputs: Callable[..., Model], target: int) -> None:
    for opset in (9, 13, target, NEWEST):
        for tail in (softmax, reduce_mean, resize("linear", 2), split):
            model = same_outputs(network(net, opset, tail), opset=target)
            assert model.graph.opset == max(opset, target)


def test_added_nodes_belong_to_the_users_node(net: Any, same_outputs: Callable[..., Model]) -> None:
    model = same_outputs(network(net, 11, softmax))
    tail = model.graph.nodes[2:]
    assert [n.op_type for n in tail] == ["Flatten", "Softmax", "Reshape"]
    assert {model.origins[n.name] for n in tail} == {("sm",)}


@pytest.mark.parametrize("opset", [9, 10])
def test_what_the_converter_replaces_keeps_its_names(
    net: Any, same_outputs: Callable[..., Model], opset: int
) -> None:
    """In the middle of a network the converter names the Resize of an Upsample, and its output."""
    n = net(opset).add("Relu", "x", "r", "act").const("sc", np.array([1, 1, 2, 2], np.float32))
    kind = "Upsample" if opset == 9 else "Resize"
    n.add(kind, "r,sc", "wide", "upsample", mode="nearest").add("Neg", "wide", "y", "last")
    model = same_outputs(n.model())
    (resize,) = [node for node in model.graph.nodes if node.op_type == "Resize"]
    assert (resize.name, resize.outputs) == ("upsample", ("wide",))


def test_an_output_whose_type_is_given_twice(net: Any, same_outputs: Callable[..., Model]) -> None:
    """As onnxconverter-common leaves it, where an FP16 model keeps FP32 outputs."""
    proto = net(11).add("Cast", "x", "h", to=TensorProto.FLOAT16).add("Sigmoid", "h", "s")
    proto = proto.add("Cast", "s", "y", to=TensorProto.FLOAT).model()
    proto.graph.value_info.append(helper.make_tensor_value_info("y", TensorProto.FLOAT16, None))
    same_outputs(proto)


def test_an_ir_version_newer_than_onnx_runtime(net: Any, prepared: Any, execute: Any) -> None:
    proto = net(17, ir_version=onnx.IR_VERSION + 1).add("Relu", "x", "y").model()
    model = prepared(proto)
    execute(model.graph.proto, {"x": np.ones((1, 3, 8, 8), np.float32)})
    assert model.file.proto.ir_version == onnx.IR_VERSION + 1  # the user's file is not touched


@pytest.mark.parametrize("opset", [9, 10, 12])
def test_weights_among_the_inputs(
    net: Any, same_outputs: Callable[..., Model], capfd: Any, opset: int
) -> None:
    proto = network(net, opset, clip)
    proto.ir_version = 3
    have = {v.name for v in proto.graph.input}
    proto.graph.input.extend(
        helper.make_tensor_value_info(w.name, w.data_type, w.dims)
        for w in proto.graph.initializer
        if w.name not in have
    )
    model = same_outputs(proto)
    assert [v.name for v in model.graph.proto.graph.input] == ["x"]
    assert capfd.readouterr() == ("", "")


def test_what_cannot_be_converted(
    net: Any, prepared: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no adapter")

    monkeypatch.setattr("qdebug.network.convert.version_converter.convert_version", refuse)
    with refused("QD-MODEL-CONVERT", "13", "no adapter"):
        prepared(net(9).add("Relu", "x", "y").model())


@pytest.mark.parametrize("per_axis", [True, False])
def test_scales_along_an_axis_need_opset_13(tmp_path: Path, per_axis: bool) -> None:
    """A model that is invalid in another way is not told to take a newer opset."""
    node = helper.make_node("DequantizeLinear", ["x", "s"], ["y"], "dq")
    node.attribute.append(helper.make_attribute("axis" if per_axis else "axle", 1))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "g",
        [value("x", TensorProto.INT8, [1, 2])], [value("y", TensorProto.FLOAT, [1, 2])],
        [numpy_helper.from_array(np.ones(2, np.float32), "s")],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)])
    with pytest.raises(ModelError) as caught:
        check_structure(tmp_path / "m.onnx", proto)
    assert caught.value.code == "QD-MODEL-INVALID"
    assert ("opset_version=13" in caught.value.hint) == per_axis
