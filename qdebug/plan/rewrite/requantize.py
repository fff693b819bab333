"""Other scales for a model that others have quantized, as far as its FP32 model is known.

What is made is no file to ship but computes what such a file would: weights are constants in
floating point, of quantized values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from qdebug.calibrators.weights import weight_amax
from qdebug.formats.base import FloatArray, Kind
from qdebug.formats.registry import INT8
from qdebug.network.codes import format_of_codes
from qdebug.network.graph import Graph, Node
from qdebug.network.layers import Layer
from qdebug.plan.imported import Imported
from qdebug.plan.rewrite.constants import ConstantValues, spread
from qdebug.plan.rewrite.edit import copy_node
from qdebug.plan.rewrite.qdq import weight_axis
from qdebug.types import Array


def with_channel_scales(
    model: Imported, reference: Graph, candidate: Graph, layers: Iterable[Layer]
) -> tuple[Imported, tuple[str, ...]]:
    """`model`, imported from `candidate`, with a scale for each output channel of those weights
    that have one scale, or have them along another axis, or one that is not a positive number; and
    the names of the layers that read these.

    Weights that are no roundings of the FP32 model's stay as they are.
    """
    changed = []
    for layer in layers:
        for tensor, values in _rounded_by_channel(model, reference, candidate, layer):
            model, (name,) = model.with_constants((f"{tensor}_by_channel", values))
            model = model.reading({layer.name: {tensor: name}})
            changed.append(layer.name)
    return model, tuple(changed)


def _rounded_by_channel(
    model: Imported, reference: Graph, candidate: Graph, layer: Layer
) -> Iterable[tuple[str, FloatArray]]:
    """The weight of a layer and what it is with a scale for each output channel; nothing where it
    has that already, and where its FP32 weight is not known."""
    node, original = candidate.by_name.get(layer.name), reference.by_name.get(layer.name)
    if node is None or original is None or layer.weight is None:
        return
    for tensor in node.inputs[:2]:
        producer, exact = (
            candidate.producers.get(tensor),
            model.exact.get(node.name, {}).get(tensor),
        )
        made = model.makers.get(exact or "")
        cast = made if made is not None and made.op_type == "Cast" else None  # of a layer in FP16
        weight = model.graph.constant(cast.input[0] if cast else exact or "")
        if producer is None or producer.op_type != "DequantizeLinear" or weight is None:
            continue
        scale = candidate.constant(producer.inputs[1])
        axis = weight_axis(original, reference, layer.weight)
        if (
            scale is None
            or axis is None
            or weight.shape != tuple(reference.initializers[layer.weight].dims)
        ):
            return
        along = int(candidate.attributes(producer).get("axis", 1)) % weight.ndim
        valid = bool(np.all(scale > 0) and np.all(np.isfinite(scale)))
        by_channel = scale.size > 1 and along == axis and valid
        if scale.ndim > 1 or by_channel or weight.shape[axis] < 2:
            return
        form = format_of_codes(candidate, producer) or INT8
        scales = form.scale_of(weight_amax(weight, axis))
        if form.kind is Kind.INTEGER:  # fewer bits may be stored in a wider type
            steps = np.where(np.isfinite(scale) & (scale > 0), scale, np.inf)
            own = ConstantValues(candidate).value(tensor)
            stored = weight if own is None else own
            used = np.round(np.nanmax(np.abs(stored / spread(steps, stored, along, 0)), initial=0))
            scales = scales * np.float32(max(1.0, form.largest / max(1.0, used)))
        yield tensor, form.quantize(weight, scales, axis)
        return


def with_scales(model: Imported, scales: Mapping[str, float]) -> tuple[Imported, tuple[str, ...]]:
    """`model` with other scales of some activations, zero points as they are; and the tensors
    whose scale has changed: those with one constant scale, whose codes are read by nothing but
    DequantizeLinear."""
    graph, makers, changed = model.graph, dict(model.makers), []
    for node in graph.nodes:
        wanted = scales.get(node.inputs[0]) if node.op_type == "QuantizeLinear" else None
        scale = None if wanted is None else _single_scale(graph, node)
        if wanted is None or scale is None:
            continue
        other = np.full_like(scale, wanted)
        model, (name,) = model.with_constants((f"{node.inputs[1]}_fitted", other))
        for one in (node, *graph.consumers[node.outputs[0]]):
            proto = copy_node(makers[one.outputs[0]])
            proto.input[1] = name
            makers[one.outputs[0]] = proto
        changed.append(node.inputs[0])
    return replace(model, makers=makers), tuple(dict.fromkeys(changed))


def _single_scale(graph: Graph, quantizer: Node) -> Array | None:
    """The scale of a QuantizeLinear; None where there are several, or it is computed, or its codes
    have other readers than DequantizeLinear."""
    codes, scale = quantizer.outputs[0], graph.constant(quantizer.inputs[1])
    readers = {reader.op_type for reader in graph.consumers.get(codes, ())}
    plain = readers == {"DequantizeLinear"} and codes not in graph.outputs
    return scale if plain and scale is not None and scale.size == 1 else None
