"""Faults at single nodes: overflows in FP16, pairs in the wrong place, close scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper, numpy_helper
from planted_channels import output_axis
from planted_network import Fault, Network, first, int8_fault, outputs_of, spread

from qdebug.network.graph import Graph, Node
from qdebug.network.weights import with_data
from qdebug.plan.lower import lower
from qdebug.plan.plan import PrecisionPlan, bind_plan
from qdebug.types import Precision, Tensors

HALF_MAX = 65504.0

# --- FP16 -----------------------------------------------------------------------------------


def overflowing_norms(network: Network, most: int = 3) -> Iterator[Fault]:
    """A residual stream so large that its squares, inside a layer normalization that is written
    out, leave FP16's range; the normalization undoes the scale."""
    whole = decomposed(network.model)
    graph = Graph(whole)
    squares = [n for n in graph.nodes if n.op_type == "Pow" and _is_square(graph, n)]
    for square in spread(squares, most):
        centered = graph.producers.get(square.inputs[0])
        if centered is None or centered.op_type != "Sub":
            continue
        stream = centered.inputs[0]
        largest = _largest(whole, square.inputs[0], network.samples)
        factor = np.float32(4 * np.sqrt(HALF_MAX) / largest)
        yield Fault(
            "fp16-norm",
            network.name,
            square.name,
            frozenset(_norm_nodes(graph, square)),
            frozenset({"fp16-overflow"}),
            {
                "model": _scaled_norm(whole, stream, graph, factor),
                "inputs": network.samples,
                "precision": "fp16",
                "cache": False,
            },
        )


def decomposed(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` with each LayerNormalization over the last axis written out."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    nodes = list(changed.graph.node)
    del changed.graph.node[:]
    for node in nodes:
        if node.op_type == "LayerNormalization":
            changed.graph.node.extend(_written_out(changed, node))
        else:
            changed.graph.node.append(node)
    return changed


def _written_out(model: onnx.ModelProto, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    x, gamma, *beta = node.input
    epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
    at = node.name
    two, eps = f"{at}_two", f"{at}_eps"
    model.graph.initializer.append(numpy_helper.from_array(np.array(2, np.float32), two))
    model.graph.initializer.append(numpy_helper.from_array(np.array(epsilon, np.float32), eps))
    steps = [
        ("ReduceMean", [x], "mean"),
        ("Sub", [x, f"{at}_mean"], "centered"),
        ("Pow", [f"{at}_centered", two], "square"),
        ("ReduceMean", [f"{at}_square"], "variance"),
        ("Add", [f"{at}_variance", eps], "positive"),
        ("Sqrt", [f"{at}_positive"], "deviation"),
        ("Div", [f"{at}_centered", f"{at}_deviation"], "normal"),
        ("Mul", [f"{at}_normal", gamma], "scaled"),
        *([("Add", [f"{at}_scaled", beta[0]], "shifted")] if beta else []),
    ]
    made = []
    for i, (kind, inputs, name) in enumerate(steps):
        output = node.output[0] if i == len(steps) - 1 else f"{at}_{name}"
        more = {"axes": [-1]} if kind == "ReduceMean" else {}
        made.append(helper.make_node(kind, inputs, [output], f"{at}/{name}", **more))
    return made


def _is_square(graph: Graph, node: Node) -> bool:
    exponent = graph.constant(node.inputs[1])
    reader = graph.consumers.get(node.outputs[0], ())
    return (
        exponent is not None
        and exponent.size == 1
        and float(exponent.reshape(())) == 2
        and len(reader) == 1
        and reader[0].op_type == "ReduceMean"
    )


def _norm_nodes(graph: Graph, square: Node) -> list[str]:
    """The square and what computes the deviation of it."""
    names, node = [square.name], square
    while node.op_type not in ("Sqrt", "Div"):
        node = graph.consumers[node.outputs[0]][0]
        names.append(node.name)
    return names


def _scaled_norm(
    model: onnx.ModelProto, stream: str, graph: Graph, factor: np.float32
) -> onnx.ModelProto:
    """The mean and the difference of one normalization read `stream` times `factor`."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    large, name = f"{stream}_large", f"{stream}_factor"
    readers = {n.name for n in graph.consumers[stream] if n.op_type in ("ReduceMean", "Sub")}
    position = None
    for i, node in enumerate(changed.graph.node):
        if node.name in readers:
            position = i if position is None else position
            for k, tensor in enumerate(node.input):
                if tensor == stream:
                    node.input[k] = large
    assert position is not None
    changed.graph.initializer.append(numpy_helper.from_array(np.array(factor, np.float32), name))
    node = helper.make_node("Mul", [stream, name], [large], f"{stream}_scale")
    changed.graph.node.insert(position, node)
    return changed


def _largest(model: onnx.ModelProto, tensor: str, samples: Tensors) -> float:
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    shown.graph.output.append(helper.make_empty_tensor_value_info(tensor))
    return float(np.abs(outputs_of(shown, first(samples, 8))[-1]).max())


# --- pairs ----------------------------------------------------------------------------------


def misplaced_pairs(network: Network, most: int = 3) -> Iterator[Fault]:
    """In the model with Q/DQ, the pair of one operand of an Add, Mul or Concat stands at the other
    one, which has at least twice the range."""
    graph = Graph(network.model)
    bound = bind_plan(network.plan, network.prepared, network.layers)
    lowered = with_data(lower(bound).graph.proto)
    joints = [n for n in graph.nodes if n.op_type in ("Add", "Mul", "Concat")]
    pairs = [(n, [t for t in n.inputs if graph.is_float(t)]) for n in joints]
    pairs = [(n, t) for n, t in pairs if len(t) == 2 and not set(t) & set(graph.initializers)]
    known = [(n, t) for n, t in pairs if all(x in graph.producers for x in t)]
    ranges = _amax_of(network.model, {x for _, t in known for x in t}, network.calibration)
    wrong = []
    for node, tensors in known:
        low, high = sorted(tensors, key=lambda t: ranges[t])
        if 0 < ranges[low] <= ranges[high] / 2:
            wrong.append((node, low, high))
    for node, low, high in spread(wrong, most):
        model = _with_pair_at(lowered, node.name, low, high, ranges[low])
        layer = network.layers.of_node.get(node.name)
        if layer is None or model is None:
            continue
        yield Fault(
            "misplaced-pair",
            network.name,
            node.name,
            frozenset({layer.name}),
            frozenset({"clipping"}),
            {
                "model": model,
                "reference": network.model,
                "inputs": network.samples,
                "cache": False,
            },
        )


def _amax_of(model: onnx.ModelProto, tensors: set[str], samples: Tensors) -> dict[str, float]:
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    names = sorted(tensors - {o.name for o in model.graph.output})
    shown.graph.output.extend(helper.make_empty_tensor_value_info(t) for t in names)
    outputs = [o.name for o in shown.graph.output]
    found = dict(zip(outputs, outputs_of(shown, first(samples, 16)), strict=True))
    return {t: float(np.abs(found[t]).max()) for t in tensors}


def _with_pair_at(
    lowered: onnx.ModelProto, name: str, low: str, high: str, amax: float
) -> onnx.ModelProto | None:
    """`lowered` with the node `name` reading `low` as it is, and `high` by a pair of range `amax`;
    None where the node reads neither."""
    model = onnx.ModelProto()
    model.CopyFrom(lowered)
    graph = Graph(lowered)
    position, node = next((i, n) for i, n in enumerate(model.graph.node) if n.name == name)
    sources = [_plain(graph, t) for t in node.input]
    if low not in sources or high not in sources:
        return None
    node.input[sources.index(low)] = low
    node.input[sources.index(high)] = f"{high}_restored"
    scale, zero = f"{high}_wrong_scale", f"{high}_wrong_zero"
    model.graph.initializer.extend(
        [
            numpy_helper.from_array(np.array(amax / 127, np.float32), scale),
            numpy_helper.from_array(np.array(0, np.int8), zero),
        ]
    )
    codes = f"{high}_codes"
    pair = [
        helper.make_node("QuantizeLinear", [high, scale, zero], [codes], f"{high}_wrong_q"),
        helper.make_node(
            "DequantizeLinear", [codes, scale, zero], [f"{high}_restored"], f"{high}_wrong_dq"
        ),
    ]
    for offset, added in enumerate(pair):
        model.graph.node.insert(position + offset, added)
    return model


def _plain(graph: Graph, tensor: str) -> str:
    """What a tensor is without Q/DQ."""
    node = graph.producers.get(tensor)
    while node is not None and node.op_type in ("DequantizeLinear", "QuantizeLinear"):
        tensor = node.inputs[0]
        node = graph.producers.get(tensor)
    return tensor


# --- decisions ------------------------------------------------------------------------------


def close_scores(network: Network) -> Iterator[Fault]:
    """A class is chosen and looked up in a table; two classes have nearly the same scores. Without
    them INT8 chooses as FP32 does, or nearly."""
    made = with_close_classes(network)
    if made is None:
        return
    model, scores, gemm = made
    table = np.random.default_rng(12).normal(size=(10, 8)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "class_table"))
    model.graph.node.extend(
        [
            helper.make_node("ArgMax", [scores], ["class"], "class_ArgMax", axis=1, keepdims=0),
            helper.make_node("Gather", ["class_table", "class"], ["code"], "class_Gather"),
        ]
    )
    del model.graph.output[:]
    model.graph.output.append(
        helper.make_tensor_value_info("code", onnx.TensorProto.FLOAT, ["N", 8])
    )
    fault = int8_fault(
        network,
        "close-scores",
        gemm,
        culprits={"class_Gather", *(layer.name for layer in network.layers)},
        labels={"index-flip"},
        model=model,
        plan=PrecisionPlan(Precision.INT8),
        calib_data=network.calibration,
    )
    yield replace(fault, explained="class_Gather")


def with_close_classes(network: Network) -> tuple[onnx.ModelProto, str, str] | None:
    """A classifier whose last layer is a Gemm, with classes that come in pairs of nearly the same
    scores; the tensor of the scores, and the Gemm's name."""
    graph = Graph(network.model)
    node = graph.producers.get(graph.outputs[0])
    if node is None or node.op_type != "Gemm" or len(graph.outputs) > 1:
        return None
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    rng = np.random.default_rng(11)
    for tensor in model.graph.initializer:
        if tensor.name in node.inputs[1:]:
            values = numpy_helper.to_array(tensor).copy()
            axis = output_axis(graph, node, values.ndim) if values.ndim > 1 else 0
            classes = np.moveaxis(values, axis, 0)
            near = classes[::2][: len(classes[1::2])]
            spread_of = 0.01 * values.std() if values.ndim > 1 else 0.0
            classes[1::2] = near + rng.normal(scale=spread_of, size=near.shape)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return model, graph.outputs[0], node.name
