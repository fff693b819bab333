"""An ONNX model seen as an engine: what its Q/DQ pairs and Casts ask for, one layer to a group."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import onnx

from qdebug.engine_info.layers import (
    EngineInfo,
    EngineLayer,
    InfoSource,
    ModelTensor,
    OnnxNode,
    UnequalScales,
)
from qdebug.engine_info.tensors import EngineTensor
from qdebug.formats.registry import FORMATS
from qdebug.network.graph import Graph, Node
from qdebug.network.inline import is_control_flow
from qdebug.network.layers import QUANTIZABLE_OPS, Layer, find_layers
from qdebug.network.macs import Shapes, known_macs, shapes_per_sample
from qdebug.network.subgraphs import bodies, nodes_in, size_of
from qdebug.plan.lints import saturated_biases, saturation_notes, scale_notes
from qdebug.plan.rewrite.qoperator import has_qoperators, to_qdq
from qdebug.plan.rewrite.symmetric import quantized_tensors
from qdebug.wording import counted

_DTYPES = {
    **{form.onnx_type: str(form.precision) for form in FORMATS},
    onnx.TensorProto.FLOAT4E2M1: "fp4",
    onnx.TensorProto.DOUBLE: "fp64",
    onnx.TensorProto.INT32: "int32",
    onnx.TensorProto.INT64: "int64",
    onnx.TensorProto.BOOL: "bool",
}
_QDQ = ("QuantizeLinear", "DequantizeLinear")
_SHOWN_OPS = QUANTIZABLE_OPS | {"LSTM", "GRU", "RNN", "If", "Loop", "Scan"}
_NAMED_AXIS = re.compile(r"(?!unk__|DynamicDimension|p2o\W)(?!\w*(?:_dim_|__d)\d)[A-Za-z_]\w{0,19}")
"""Exporters name the others, as unk__214, DynamicDimension.1 and Concatoutput0_dim_1."""
_NOTE = "This is what the model requests; for the kernels that TensorRT builds, see the build log."


def info_of_graph(graph: Graph) -> EngineInfo:
    """The layers that TensorRT is asked to build: `model.layers`' groups in their precision.
    Integer operators are read as their Q/DQ equivalents.

    Raises:
        ModelError: one of them has none.
    """
    if has_qoperators(graph):
        explicit = to_qdq(graph).proto
        graph = Graph.inferred(explicit)
    layers = [_layer(graph, x) for x in find_layers(graph) if x.op_type not in _QDQ]
    read = {name for layer in layers for name in layer.onnx_nodes}
    layers += [  # a pair that nothing computing reads is still work
        EngineLayer(
            name=node.name,
            layer_type=node.op_type,
            inputs=(_tensor(graph, node.inputs[0]),),
            outputs=(_tensor(graph, node.outputs[0]),),
            onnx_nodes=(node.name,),
            origin="QDQ",
        )
        for node in graph.nodes
        if node.op_type == "DequantizeLinear" and node.name not in read
    ]
    inputs = [spec.name for spec in graph.inputs]
    info = EngineInfo(
        tuple(layers),
        InfoSource.ONNX,
        tuple(_tensor(graph, name) for name in (*inputs, *graph.outputs)),
        notes=_notes(graph),
        model_inputs=tuple(_described(graph, name) for name in inputs),
        model_outputs=tuple(_described(graph, name) for name in graph.outputs),
    )
    return with_nodes(info, graph)


def with_nodes(info: EngineInfo, graph: Graph) -> EngineInfo:
    """`info` with the nodes of the model it was built from, if its source does not name them, and
    the scales that its Concats join."""
    shapes = shapes_per_sample(graph)
    nodes = info.nodes or tuple(_node(graph, node, shapes) for node in graph.nodes)
    return replace(info, nodes=nodes, unequal_scales=_unequal_scales(graph))


def dtype_of(kind: int | None) -> str:
    """An onnx.TensorProto type as in `EngineTensor.dtype`; "" for one that has no name there."""
    return _DTYPES.get(kind, "") if kind is not None else ""


def _described(graph: Graph, name: str) -> ModelTensor:
    """An input or output, its axes with the names that a person gave them and can be shown."""
    kind = graph.types.get(name)
    dtype = dtype_of(kind) or (onnx.TensorProto.DataType.Name(kind).lower() if kind else "")
    shape = tuple(
        size if isinstance(size, int) or (size and _NAMED_AXIS.fullmatch(size)) else "?"
        for size in graph.shapes.get(name, ())
    )
    return ModelTensor(name, dtype, shape)


def _node(graph: Graph, node: Node, shapes: Shapes) -> OnnxNode:
    """A node as a build log would name it."""
    macs = None
    if node.op_type in QUANTIZABLE_OPS and not node.domain:
        left, right = (shapes.get(tensor) for tensor in node.inputs[:2])
        macs = known_macs(node.op_type, left, right, shapes.get(node.outputs[0]))
    inputs, outputs = (tuple(filter(None, names)) for names in (node.inputs, node.outputs))
    return OnnxNode(
        name=node.name,
        op_type=node.op_type,
        inputs=inputs,
        outputs=outputs,
        input_shapes=tuple(_tensor(graph, tensor).dims for tensor in inputs),
        output_shapes=tuple(_tensor(graph, tensor).dims for tensor in outputs),
        macs=macs,
    )


def _notes(graph: Graph) -> tuple[str, ...]:
    found = quantized_tensors(graph)
    told = (
        *scale_notes(graph),
        *saturation_notes(saturated_biases(graph)),
        *_inside([node for node in graph.proto.graph.node if is_control_flow(node)]),
    )
    if not found.others:
        return (_NOTE, *told)
    return (
        _NOTE,
        *told,
        f"{len(found.others)} of {found.count} quantized tensors are not signed with zero point 0, "
        f"first {found.others[0]}. TensorRT takes no others.",
    )


def _inside(nodes: Sequence[onnx.NodeProto]) -> tuple[str, ...]:
    """What the bodies of If, Loop and Scan hold: those of the largest, where there are several."""
    if not nodes:
        return ()
    node = max(nodes, key=lambda n: sum(map(size_of, bodies(n))))
    parts = []
    for attribute in node.attribute:
        if attribute.HasField("g"):
            count = Counter(n.op_type for n in nodes_in(attribute.g))
            products = [f"{n} {op}" for op, n in count.items() if op in _SHOWN_OPS]
            shown = f" ({', '.join(products)})" if products else ""
            parts.append(f"{attribute.name} has {counted(count.total(), 'node')}{shown}")
    what = f"{node.op_type} '{node.name}' holds nodes that are not listed"
    if len(nodes) > 1:
        count = Counter(n.op_type for n in nodes)
        operators = ", ".join(f"{n} {op}" for op, n in count.items())
        what = f"{operators} hold nodes that are not listed; most are in '{node.name}'"
    return (
        f"{what}: {'; '.join(parts)}. Commands that read samples follow the branch of an If that "
        "these take.",
    )


def _unequal_scales(graph: Graph) -> tuple[UnequalScales, ...]:
    """The Concats all of whose inputs are dequantized, by scales that differ."""
    found = []
    for node in graph.nodes:
        if node.op_type != "Concat":
            continue
        makers = [graph.producers.get(tensor) for tensor in node.inputs]
        scales = [
            None if m is None or m.op_type != "DequantizeLinear" else graph.constant(m.inputs[1])
            for m in makers
        ]
        values = [float(s.reshape(-1)[0]) for s in scales if s is not None and s.size == 1]
        if len(values) == len(scales) and len(set(values)) > 1:
            found.append(UnequalScales(node.name, tuple(values)))
    return tuple(found)


def _layer(graph: Graph, layer: Layer) -> EngineLayer:
    """Nodes that compute as one, which read what is quantized in its codes."""
    inside = {t for node in layer.nodes for t in graph.by_name[node].outputs}
    inputs: list[EngineTensor] = []
    constants: list[EngineTensor] = []
    nodes = dict.fromkeys(layer.nodes)
    for tensor in (t for node in layer.nodes for t in graph.by_name[node].reads):
        if tensor not in inside:
            source, pair = _source(graph, tensor)
            nodes |= dict.fromkeys(pair)
            maker = graph.producers.get(source)
            quantized = maker is not None and maker.op_type == "QuantizeLinear"
            held = (maker.inputs[0] if maker and quantized else source) in graph.initializers
            (constants if held else inputs).append(replace(_tensor(graph, source), name=tensor))
    return EngineLayer(
        name=layer.name,
        layer_type=layer.op_type,
        inputs=tuple(inputs),
        outputs=(_tensor(graph, layer.output),),
        constants=tuple(constants),
        onnx_nodes=tuple(nodes),
    )


def _source(graph: Graph, tensor: str) -> tuple[str, Sequence[str]]:
    """The quantized tensor behind a Q/DQ pair, and the nodes of the pair; else `tensor` itself."""
    node = graph.producers.get(tensor)
    if node is None or node.op_type != "DequantizeLinear":
        return tensor, ()
    before = graph.producers.get(node.inputs[0])
    return node.inputs[0], [n.name for n in (before, node) if n is not None and n.op_type in _QDQ]


def _tensor(graph: Graph, name: str) -> EngineTensor:
    shape = graph.shapes.get(name)
    dims = None if shape is None else tuple(d if isinstance(d, int) else -1 for d in shape)
    return EngineTensor(name, dtype_of(graph.types.get(name)), dims=dims)
