"""The network behind an engine, by its file."""

from __future__ import annotations

from qdebug.engine_info.files.description import describe_engine
from qdebug.engine_info.layers import EngineInfo, EngineLayer, InfoSource, OnnxNode
from qdebug.engine_info.tensors import EngineTensor


def node(name: str, op: str, inputs: str, outputs: str) -> OnnxNode:
    reads, makes = tuple(inputs.split()), tuple(outputs.split())
    return OnnxNode(name, op, reads, makes, output_shapes=((1, 2),) * len(makes))


def tensors(names: str) -> tuple[EngineTensor, ...]:
    return tuple(EngineTensor(name, dims=(1, 4)) for name in names.split())


def test_by_the_nodes_of_the_model() -> None:
    info = EngineInfo(
        (),
        InfoSource.BUILD_LOG,
        tensors("x y"),
        nodes=(
            node("q", "QuantizeLinear", "x s", "xq"),
            node("dq", "DequantizeLinear", "xq s", "xd"),
            node("k", "Constant", "", "six"),
            node("conv", "Conv", "xd w", "c"),
            node("clip", "Clip", "c six", "r"),
            node("q2", "QuantizeLinear", "r s", "rq"),
            node("dq2", "DequantizeLinear", "rq s", "y"),
        ),
    )
    found = describe_engine(info)
    assert [(n.name, n.inputs, n.outputs) for n in found.nodes] == [
        ("conv", ("x",), ("c",)),
        ("clip", ("c",), ("r",)),
    ]
    assert found.inputs == ("x",) and found.outputs == ("r",)
    assert {t.name: t.shape for t in found.tensors} == {"c": (1, 2), "r": (1, 2)}


def test_by_its_layers() -> None:
    info = EngineInfo(
        (
            EngineLayer("conv1", "CaskConvolution", tensors("x"), tensors("a")),
            EngineLayer("wait", "wait", tensors("a"), ()),
            EngineLayer("copy", "Reformat", tensors("a"), tensors("b")),
            EngineLayer("add", "PointWise", tensors("a b"), tensors("y")),
        ),
        InfoSource.LAYER_INFO,
    )
    found = describe_engine(info)
    assert [(n.name, n.op, n.inputs) for n in found.nodes] == [
        ("conv1", "CaskConvolution", ("x",)),
        ("copy", "Reformat", ("a",)),
        ("add", "PointWise", ("a", "b")),
    ]
    assert found.inputs == ("x",) and all(n.layer == n.name for n in found.nodes)
