"""Quantize a model that others have quantized in another way, as far as its FP32 model is known:
a scale for each output channel of its weights, other ranges for its activations.

What is made is no file to ship but computes what such a file would: weights are constants in
floating point, of quantized values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from qdebug.calibrators.weights import weight_amax
from qdebug.formats.base import FloatArray, Kind
from qdebug.formats.registry import INT8
from qdebug.network.codes import format_of_codes
from qdebug.network.graph import Graph, Node
from qdebug.network.layers import Layer
from qdebug.plan.rewrite.constants import ConstantValues
from qdebug.plan.rewrite.edit import Editor, copy_node
from qdebug.plan.rewrite.qdq import weight_axis
from qdebug.plan.rewrite.refine import normalization_behind, with_fp32_constants
from qdebug.plan.rewrite.strip import spread
from qdebug.types import Array


def with_channel_scales(
    reference: Graph, candidate: Graph, layers: Iterable[Layer]
) -> tuple[Graph, tuple[str, ...]]:
    """`candidate`, a quantized model in the names of `reference`, with a scale for each output
    channel of those weights that have one scale, or have them along another axis, or one that is
    not a positive number; and the names of the layers that read these. A BatchNormalization behind
    one is folded into it.

    Weights that are no roundings of the FP32 model's stay as they are.

    Raises:
        PlanError: as `check`.
    """
    exact = with_fp32_constants(reference, candidate).graph
    rounded: dict[str, tuple[int, FloatArray]] = {}
    folded: set[str] = set()
    for layer in layers:
        found = _rounded_by_channel(reference, candidate, exact, layer)
        if found is not None:
            rounded[layer.name] = found
            normalized = normalization_behind(candidate, candidate.by_name[layer.name])
            folded |= {normalized.name} if normalized is not None else set()
    exchanged = folded | rounded.keys()
    editor = _with_constants(
        candidate, exact, (t for n in exchanged for t in exact.by_name[n].inputs)
    )
    for proto in candidate.proto.graph.node:
        node = copy_node(exact.protos[proto.name] if proto.name in exchanged else proto)
        if proto.name in rounded:
            place, values = rounded[proto.name]
            node.input[place] = editor.initializer(values, f"{node.input[place]}_by_channel")
        editor.emit(node)
    return Graph(editor.finish("the model with a scale for each channel")), tuple(rounded)


def _with_constants(candidate: Graph, exact: Graph, tensors: Iterable[str]) -> Editor:
    """An editor of `candidate` with those of the tensors that are constants of `exact` only."""
    editor, missing = Editor(candidate), {*tensors} - candidate.initializers.keys()
    constants = exact.proto.graph.initializer
    editor.proto.graph.initializer.extend(t for t in constants if t.name in missing)
    return editor


def _rounded_by_channel(
    reference: Graph, candidate: Graph, exact: Graph, layer: Layer
) -> tuple[int, FloatArray] | None:
    """Which input of a layer is its weight, and what it is with a scale for each output channel;
    None where it has that already, and where its FP32 weight is not known."""
    node, original = candidate.by_name.get(layer.name), reference.by_name.get(layer.name)
    if node is None or original is None or layer.weight is None:
        return None
    for place, tensor in enumerate(node.inputs[:2]):
        producer = candidate.producers.get(tensor)
        if producer is None or producer.op_type != "DequantizeLinear":
            continue
        scale = candidate.constant(producer.inputs[1])
        weight = exact.constant(exact.by_name[layer.name].inputs[place])
        if scale is None or weight is None:
            continue
        axis = weight_axis(original, reference, layer.weight)
        if axis is None or weight.shape != tuple(reference.initializers[layer.weight].dims):
            return None
        along = int(candidate.attributes(producer).get("axis", 1)) % weight.ndim
        valid = bool(np.all(scale > 0) and np.all(np.isfinite(scale)))
        by_channel = scale.size > 1 and along == axis and valid
        if scale.ndim > 1 or by_channel or weight.shape[axis] < 2:
            return None
        form = format_of_codes(candidate, producer) or INT8
        scales = form.scale_of(weight_amax(weight, axis))
        if form.kind is Kind.INTEGER:  # fewer bits may be stored in a wider type
            steps = np.where(np.isfinite(scale) & (scale > 0), scale, np.inf)
            own = ConstantValues(candidate).value(tensor)
            stored = weight if own is None else own  # before a BatchNormalization another one
            used = np.round(np.nanmax(np.abs(stored / spread(steps, stored, along, 0)), initial=0))
            scales = scales * np.float32(max(1.0, form.largest / max(1.0, used)))
        return place, form.quantize(weight, scales, axis)
    return None


def with_exact_biases(reference: Graph, candidate: Graph, nodes: Collection[str]) -> Graph:
    """`candidate` with the biases of the FP32 model in these nodes, in floating point.

    Raises:
        PlanError: as `check`.
    """
    exact = with_fp32_constants(reference, candidate, biases=True).graph
    biases = (t for n in nodes for t in exact.by_name[n].inputs[2:])
    editor = _with_constants(candidate, exact, biases)
    for proto in candidate.proto.graph.node:
        node = copy_node(proto)
        if proto.name in nodes:
            node.input[2:] = exact.protos[proto.name].input[2:]
        editor.emit(node)
    return Graph(editor.finish("the model with biases in floating point"))


def with_scales(candidate: Graph, scales: Mapping[str, float]) -> tuple[Graph, tuple[str, ...]]:
    """`candidate` with other scales of some activations, zero points as they are; and the tensors
    whose scale has changed: those with one constant scale, whose codes are read by nothing but
    DequantizeLinear.

    Raises:
        PlanError: as `check`.
    """
    editor = Editor(candidate)
    of_codes: dict[str, str] = {}  # codes -> their new scale
    changed = []
    for proto in candidate.proto.graph.node:
        node = copy_node(proto)
        view = candidate.by_name[proto.name]
        wanted = scales.get(view.inputs[0]) if view.op_type == "QuantizeLinear" else None
        scale = None if wanted is None else _single_scale(candidate, view)
        if wanted is not None and scale is not None:
            other = np.full_like(scale, wanted)
            node.input[1] = editor.initializer(other, f"{view.inputs[1]}_fitted")
            of_codes[view.outputs[0]] = node.input[1]
            changed.append(view.inputs[0])
        elif view.op_type == "DequantizeLinear" and view.inputs[0] in of_codes:
            node.input[1] = of_codes[view.inputs[0]]
        editor.emit(node)
    return Graph(editor.finish("the model with other ranges")), tuple(dict.fromkeys(changed))


def _single_scale(graph: Graph, quantizer: Node) -> Array | None:
    """The scale of a QuantizeLinear; None where there are several, or it is computed, or its codes
    have other readers than DequantizeLinear."""
    codes, scale = quantizer.outputs[0], graph.constant(quantizer.inputs[1])
    readers = {reader.op_type for reader in graph.consumers.get(codes, ())}
    plain = readers == {"DequantizeLinear"} and codes not in graph.outputs
    return scale if plain and scale is not None and scale.size == 1 else None
