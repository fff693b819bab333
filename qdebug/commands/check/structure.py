"""What can be said of a model without running it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import onnx
from onnx import TensorProto, helper

from qdebug.errors import QdebugError
from qdebug.network.graph import Graph
from qdebug.network.inline import is_control_flow
from qdebug.network.layers import QUANTIZABLE_OPS, find_layers
from qdebug.network.macs import UnquantizedWork, known_macs, shapes_per_sample
from qdebug.network.prepare import Model
from qdebug.network.preprocessing import picture_input, size_input
from qdebug.network.subgraphs import bodies, size_of
from qdebug.plan.lints import invalid_scales
from qdebug.plan.rewrite.qoperator import has_qoperators
from qdebug.plan.rewrite.symmetric import check_symmetric
from qdebug.results.check import CheckedTensor, Finding
from qdebug.wording import counted, option

_NOT_IN_TENSORRT = frozenset(
    (
        *("BitShift", "Compress", "ConcatFromSequence", "ConvInteger", "Det", "MaxRoiPool"),
        *("DynamicQuantizeLinear", "MatMulInteger", "MaxUnpool", "Multinomial"),
        *("NegativeLogLikelihoodLoss", "QLinearConv", "QLinearMatMul", "SequenceAt"),
        *("SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert"),
        *("SequenceLength", "SoftmaxCrossEntropyLoss", "SplitToSequence", "StringNormalizer"),
        "TfIdfVectorizer",
    )
)
"""Operators that the list of TensorRT's ONNX parser has as unsupported; source: onnx-tensorrt's
docs/operators.md, less those that later versions added."""
_ONNX_DOMAINS = frozenset(("", "ai.onnx"))
_SHOWN = 5
_LARGE = 1024
"""Values of an INT64 initializer that is no shape."""


def findings_of(proto: onnx.ModelProto, model: Model) -> Iterator[Finding]:
    """What is odd about a model; `proto` is the file as it is."""
    yield from _operators(_all_nodes(proto.graph))
    yield from _control_flow(proto.graph)
    yield from _initializers(proto.graph)
    if model.quantized:
        yield from _quantization(model)


def unquantized_findings(work: UnquantizedWork) -> Iterator[Finding]:
    """That layers which multiply stay in FP32, where they hold much of the work."""
    if work.sentence:
        yield Finding("note", "unquantized-work", work.sentence)


def macs_of(graph: Graph) -> float | None:
    """Multiply-accumulates of one sample; None where an axis is free, or where there are none."""
    shapes = shapes_per_sample(graph)
    total = 0.0
    for layer in find_layers(graph):
        node = graph.by_name[layer.name]
        if layer.op_type in QUANTIZABLE_OPS and not node.domain:
            operands = (shapes.get(t) for t in (*node.inputs[:2], node.outputs[0]))
            macs = known_macs(layer.op_type, *operands)
            if macs is None:
                return None
            total += macs
    return total or None


def tensors_of(graph: Graph, names: Mapping[int, str]) -> tuple[tuple[CheckedTensor, ...], ...]:
    """The inputs and the outputs, with what they hold where that can be told; `names` are those of
    the classes, as far as the model says."""
    meanings = {
        id(picture_input(graph.inputs)): "pictures",
        id(size_input(graph.inputs)): "width and height of the boxes' picture",
    }
    inputs = tuple(
        CheckedTensor(x.name, x.shape, str(x.dtype), meanings.get(id(x), "")) for x in graph.inputs
    )
    shapes = shapes_per_sample(graph)
    planes = [shapes[n][1] for n in graph.outputs if len(shapes.get(n, ())) == _PLANES]
    masks = planes[0] if len(planes) == 1 and isinstance(planes[0], int) else 0
    outputs = tuple(
        CheckedTensor(
            name,
            graph.shapes.get(name, ()),
            _dtype(value),
            _meaning(shapes.get(name, ()), len(names), masks),
        )
        for name, value in zip(graph.outputs, graph.proto.graph.output, strict=True)
    )
    return inputs, outputs


def _dtype(value: onnx.ValueInfoProto) -> str:
    kind = value.type.tensor_type.elem_type
    return str(helper.tensor_dtype_to_np_dtype(kind)) if kind else "no array"


_MATRIX, _BOXES, _PLANES = 2, 3, 4
_CORNERS = 4


def _meaning(shape: Sequence[int | str | None], classes: int, masks: int) -> str:
    """What an output of a network with so many named classes holds, beside another one of so many
    planes, 0 for none; "" where that is not clear."""
    if classes and len(shape) == _MATRIX and shape[-1] == classes:
        return f"scores of {classes} classes"
    if classes and len(shape) == _BOXES and shape[1] == _CORNERS + classes:
        return f"boxes and scores of {classes} classes, raw (Ultralytics)"
    if classes and len(shape) == _BOXES and shape[2] == _CORNERS + classes:
        return f"boxes and scores of {classes} classes, one object a row (RT-DETR of Ultralytics)"
    if classes and masks and len(shape) == _BOXES and shape[1] == _CORNERS + classes + masks:
        return (
            f"boxes, scores of {classes} classes and {masks} mask coefficients, raw (Ultralytics)"
        )
    return ""


def _all_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    inner = (node for outer in graph.node for body in bodies(outer) for node in _all_nodes(body))
    return [*graph.node, *inner]


def _listed(found: Counter[str]) -> str:
    shown = ", ".join(f"{count} {name}" for name, count in found.most_common(_SHOWN))
    return f"{shown}, …" if len(found) > _SHOWN else shown


def _operators(nodes: Sequence[onnx.NodeProto]) -> Iterator[Finding]:
    lacking = Counter(
        n.op_type for n in nodes if n.domain in _ONNX_DOMAINS and n.op_type in _NOT_IN_TENSORRT
    )
    if lacking:
        yield Finding(
            "warning",
            "tensorrt-operator",
            f"TensorRT's ONNX parser lists as unsupported: {_listed(lacking)}.",
            "Export without them if the model is for TensorRT, or provide plugins.",
        )
    custom = Counter(f"{n.domain}.{n.op_type}" for n in nodes if n.domain not in _ONNX_DOMAINS)
    if custom:
        yield Finding(
            "note",
            "custom-operator",
            f"Operators outside of ONNX's own: {_listed(custom)}.",
            "TensorRT needs a plugin for each; ONNX Runtime its contrib operators, or "
            f"{option('custom_op_library')}.",
        )
    indices = [n for n in nodes if n.op_type == "MaxPool" and len(n.output) > 1 and n.output[1]]
    if indices:
        yield Finding(
            "warning",
            "tensorrt-operator",
            f"{counted(indices, 'MaxPool')} with indices, which TensorRT does not compute.",
            "Export without the indices.",
        )


def _control_flow(graph: onnx.GraphProto) -> Iterator[Finding]:
    flows = [node for node in graph.node if is_control_flow(node)]
    inside = sum(size_of(body) for node in flows for body in bodies(node))
    if flows:
        kinds = _listed(Counter(node.op_type for node in flows))
        yield Finding(
            "note",
            "control-flow",
            f"{kinds}, with {counted(inside, 'node')} inside: what an If runs is compared where "
            "all samples take the same branch, a Loop as a whole.",
        )


def _initializers(graph: onnx.GraphProto) -> Iterator[Finding]:
    read = {name for node in _all_nodes(graph) for name in node.input}
    read |= {value.name for value in graph.output}
    unused = [t.name for t in graph.initializer if t.name not in read]
    if unused:
        yield Finding(
            "note",
            "unused-initializer",
            f"{counted(unused, 'initializer')} that nothing reads, first '{unused[0]}'.",
            "onnxslim or onnxsim removes them.",
        )
    wide = [
        t.name
        for t in graph.initializer
        if t.data_type == TensorProto.INT64 and math.prod(t.dims) >= _LARGE
    ]
    if wide:
        yield Finding(
            "note",
            "int64-weights",
            f"{counted(wide, 'large initializer')} in INT64, first '{wide[0]}': TensorRT before 10 "
            "reads them as INT32.",
        )


def _quantization(model: Model) -> Iterator[Finding]:
    scales = invalid_scales(model.graph)
    if scales:
        node, which = next(iter(scales.items()))
        others = f", and those of {len(scales) - 1} more" if len(scales) > 1 else ""
        yield Finding(
            "warning",
            "invalid-scale",
            f"Scales are no positive numbers: at '{node}' {which}{others}. TensorRT takes only "
            "positive ones.",
            "Quantize these layers again.",
        )
    if has_qoperators(model.graph):
        yield Finding(
            "warning",
            "tensorrt-quantization",
            "It is quantized with integer operators (QOperator format), which TensorRT does not "
            "take.",
            "Quantize in Q/DQ format for TensorRT.",
        )
        return
    try:
        check_symmetric(model.graph, str(model.file.path), "TensorRT")
    except QdebugError as error:
        yield Finding("warning", "tensorrt-quantization", f"{error.message}.", error.hint)
