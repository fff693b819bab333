"""Faults of models that ONNX Runtime's quantizer made: of their scales, biases and joints.

The network is quantized with a scale for each output channel; then one thing in the file is made
wrong. Where the fault needs channels or branches of unlike scale, the FP32 network gets them first,
and the file without the fault is made of the same network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, quantize_static
from planted_channels import ChannelEdit, insert_after, output_axis, with_large_channel
from planted_network import Fault, Network, first, int8_fault, outputs_of, spread
from planted_nodes import with_close_classes

from qdebug.network.graph import Graph
from qdebug.network.layers import Layer
from qdebug.plan.plan import PrecisionPlan
from qdebug.types import Array, Precision, Tensors

_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_UNLIKE = np.float32(32)
"""How many times as large one branch of a joint is."""


class _Reader(CalibrationDataReader):
    def __init__(self, samples: Tensors, count: int = 16) -> None:
        length = min(count, len(next(iter(samples.values()))))
        self._feeds = iter(
            {name: array[i : i + 1] for name, array in samples.items()} for i in range(length)
        )

    def get_next(self) -> Any:
        """See CalibrationDataReader."""
        return next(self._feeds, None)


def quantized(model: onnx.ModelProto, samples: Tensors) -> onnx.ModelProto:
    """What `quantize_static` makes of the products of a model: pairs at what they read, a scale for
    each channel of their weights, INT32 biases."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)  # it moves the weights of what it is given into a file of its own
    with TemporaryDirectory() as folder:
        path = Path(folder, "quantized.onnx")
        quantize_static(
            copy,
            path,
            _Reader(samples),
            op_types_to_quantize=[*_PRODUCTS],
            per_channel=True,
            extra_options={"OpTypesToExcludeOutputQuantization": [*_PRODUCTS]},
        )
        return onnx.load(path)


class _Versions(NamedTuple):
    """An FP32 network, quantized with a fault and without."""

    reference: onnx.ModelProto
    faulty: onnx.ModelProto
    mended: onnx.ModelProto


def _fault(
    network: Network,
    place: str,
    culprit: str,
    labels: set[str],
    reference: onnx.ModelProto,
    faulty: onnx.ModelProto,
    mended: onnx.ModelProto,
) -> Fault:
    """A fault of a kind at a place, "kind/place", at one layer."""
    rest = {"reference": reference, "inputs": network.samples, "cache": False}
    kind, _, where = place.partition("/")
    settings, without = {"model": faulty, **rest}, {"model": mended, **rest}
    culprits = frozenset({culprit})
    return Fault(kind, network.name, where, culprits, frozenset(labels), settings, mended=without)


@dataclass(frozen=True)
class _Stored:
    """A constant of a quantized model: its DequantizeLinear, its codes and its scale, by name."""

    node: str
    codes: str
    scale: str


class QuantizedEdit:
    """A quantized model of which constants are changed."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.graph = Graph(model)
        self._constants = {t.name: t for t in self.model.graph.initializer}

    def stored(self, layer: str, place: int) -> _Stored | None:
        """The constant that a node reads there; None where others read it too, or it is none."""
        node = self.graph.by_name.get(layer)
        if node is None or len(node.inputs) <= place:
            return None
        pair = self.graph.producers.get(node.inputs[place])
        if pair is None or pair.op_type != "DequantizeLinear":
            return None
        codes, scale = pair.inputs[:2]
        alone = all(len(self.graph.consumers[t]) == 1 for t in (codes, scale))
        known = codes in self._constants and scale in self._constants
        return _Stored(pair.name, codes, scale) if known and alone else None

    def step(self, layer: str) -> float:
        """The scale of the activation that a node reads, 0 without one."""
        name = self.activation_scale(layer)
        return float(self.value(name).reshape(-1)[0]) if name else 0.0

    def activation_scale(self, layer: str) -> str | None:
        """The constant that is it; None where there is none."""
        node = self.graph.by_name.get(layer)
        pair = self.graph.producers.get(node.inputs[0]) if node is not None else None
        constant = pair is not None and pair.inputs[1] in self._constants
        return pair.inputs[1] if pair is not None and constant else None

    def value(self, name: str) -> Array:
        """Of a constant; it may be changed and set again."""
        return numpy_helper.to_array(self._constants[name]).copy()

    def set(self, name: str, values: Array) -> None:
        """Change a constant."""
        self._constants[name].CopyFrom(numpy_helper.from_array(values, name))

    def round_weight(self, stored: _Stored, weight: Array, axis: int | None) -> None:
        """Store a weight with scales along `axis`, or with a single one."""
        others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)
        amax = np.abs(weight).max(axis=others)
        scale = (np.maximum(amax, 1e-12) / 127).astype(np.float32)
        steps = scale if axis is None else np.expand_dims(scale, others)
        self.set(stored.codes, np.clip(np.round(weight / steps), -127, 127).astype(np.int8))
        self.set(stored.scale, scale)
        proto = next(n for n in self.model.graph.node if n.name == stored.node)
        if len(proto.input) > 2:
            self.set(proto.input[2], np.zeros(scale.shape, np.int8))
        del proto.attribute[:]
        if axis is not None:
            proto.attribute.append(helper.make_attribute("axis", axis))


def _products(network: Network, inputs: int = 2) -> list[Layer]:
    """The layers with a constant weight, and with a bias where three inputs are asked for."""
    graph = Graph(network.model)
    layers = [x for x in network.layers if x.op_type in _PRODUCTS and x.weight is not None]
    reads = {x.name: graph.by_name[x.name].inputs for x in layers}
    return [x for x in layers if reads[x.name][1] == x.weight and len(reads[x.name]) >= inputs]


# --- biases -----------------------------------------------------------------------------------


def saturated_biases(network: Network, most: int = 3) -> Iterator[Fault]:
    """The weights of one channel so small that its INT32 bias, with the scale of the input times
    theirs, is cut to a part of it. Without the fault their scale is large enough."""
    base = QuantizedEdit(quantized(network.model, network.calibration))
    layers = [x for x in _products(network, inputs=3) if base.step(x.name)]
    for layer, factor in zip(spread(layers, most), cycle((3, 30, 300)), strict=False):
        made = _with_saturated_bias(network, layer, base.step(layer.name), factor)
        if made is not None:
            labels = {"bias-saturation"}
            yield _fault(
                network, f"bias-saturation/{layer.name}/{factor}", layer.name, labels, *made
            )


def _with_saturated_bias(
    network: Network, layer: Layer, step: float, factor: float
) -> _Versions | None:
    """The network with a channel of tiny weights; quantized so that its bias is cut to its part by
    `factor`; and so that it is not."""
    node = Graph(network.model).by_name[layer.name]
    edit = ChannelEdit(network.model)
    if not all(edit.is_alone(t) for t in node.inputs[1:3]):
        return None
    weight, bias = (edit.value(t) for t in node.inputs[1:3])
    along = np.moveaxis(weight, output_axis(edit.graph, node, weight.ndim), 0)
    channel = int(np.abs(bias).argmax())
    scale = abs(float(bias[channel])) / (factor * step * 2.0**31)
    if bias.ndim != 1 or scale < 1e-20 or not np.abs(along[channel]).max():
        return None
    along[channel] *= np.float32(127 * scale / np.abs(along[channel]).max())
    edit.set(node.inputs[1], weight)
    right = quantized(edit.model, network.calibration)
    made = []
    for larger in (1.0, 8.0 * factor):
        file = QuantizedEdit(right)
        kept, biased = file.stored(layer.name, 1), file.stored(layer.name, 2)
        if kept is None or biased is None:
            return None
        codes, scales = file.value(kept.codes), file.value(kept.scale)
        axis = output_axis(edit.graph, node, weight.ndim)
        rounded = np.round(along[channel] / np.float32(scale * larger))
        np.moveaxis(codes, axis, 0)[channel] = rounded.astype(np.int8)
        scales[channel] = scale * larger
        words, steps = file.value(biased.codes), file.value(biased.scale)
        steps[channel] = step * scale * larger
        exact = np.round(float(bias[channel]) / (step * scale * larger))
        words[channel] = int(np.clip(exact, -(2**31), 2**31 - 1))
        for name, values in (
            (kept.codes, codes), (kept.scale, scales), (biased.codes, words), (biased.scale, steps),
        ):  # fmt: skip
            file.set(name, values)
        made.append(file.model)
    return _Versions(edit.model, *made)


# --- scales -----------------------------------------------------------------------------------


def invalid_scales(network: Network, most: int = 4) -> Iterator[Fault]:
    """A scale of a weight that is 0, negative or NaN, or NaN for an input."""
    right = quantized(network.model, network.calibration)
    layers = [x for x in _products(network) if QuantizedEdit(right).stored(x.name, 1)]
    kinds = "zero", "negative", "nan", "input-nan"
    for layer, kind in zip(spread(layers, most), kinds, strict=False):
        file = QuantizedEdit(right)
        kept = file.stored(layer.name, 1)
        assert kept is not None
        culprits = {layer.name}
        if kind == "input-nan":
            name = file.activation_scale(layer.name)
            if name is None:
                continue
            file.set(name, np.full_like(file.value(name), np.nan))
            culprits = {x.name for x in _products(network) if file.activation_scale(x.name) == name}
        else:
            scales = file.value(kept.scale)
            widest = int(scales.argmax())
            scales[widest] = {"zero": 0.0, "negative": -scales[widest], "nan": np.nan}[kind]
            file.set(kept.scale, scales)
        versions = _Versions(network.model, file.model, right)
        fault = _fault(
            network, f"invalid-scale/{layer.name}/{kind}", layer.name, {"invalid-scale"}, *versions
        )
        yield replace(fault, culprits=frozenset(culprits))


def wrong_scales(network: Network, most: int = 2) -> Iterator[Fault]:
    """A weight of which one channel is 64 times as large, undone behind the layer: with its scales
    along the axis of the inputs, or a single one."""
    layers = [x for x in _products(network) if x.op_type != "ConvTranspose"]
    transposed = [x for x in _products(network) if x.op_type == "ConvTranspose"]
    undone = {"Mul": ("wrong-axis", "one-scale"), "BatchNormalization": ("one-scale",)}
    for layer in [*spread(layers, most), *spread(transposed, 1)]:
        for undo, kinds in undone.items():
            if undo == "BatchNormalization" and not layer.op_type.startswith("Conv"):
                continue
            made = with_large_channel(network, layer, 64.0, undo)
            if made is None:
                continue
            reference, weight, axis = made
            right = quantized(reference, network.calibration)
            for kind in kinds:
                file = QuantizedEdit(right)
                kept = file.stored(layer.name, 1)
                wrong = {0: 1, 1: 0}.get(axis, 0)
                narrow = weight.shape[wrong] < 2
                if kept is None or (kind == "wrong-axis" and narrow):
                    continue
                file.round_weight(kept, weight, wrong if kind == "wrong-axis" else None)
                versions = _Versions(reference, file.model, right)
                place = f"{kind}/{layer.name}/{undo}"
                yield _fault(network, place, layer.name, {"weight-range"}, *versions)


# --- joints -----------------------------------------------------------------------------------


def mixed_outputs(network: Network) -> Iterator[Fault]:
    """Numbers of up to 640 and scores joined in one output, and one pair for both."""
    graph = Graph(network.model)
    before = network.calibration_outputs[0]
    if before.ndim < 2 or not graph.is_float(graph.outputs[0]):
        return
    reference = onnx.ModelProto()
    reference.CopyFrom(network.model)
    factor = np.float32(640 / max(1e-6, float(np.abs(before).max())))
    reference.graph.initializer.append(numpy_helper.from_array(factor.reshape(()), "to_pixels"))
    reference.graph.node.extend(
        [
            helper.make_node("Mul", [graph.outputs[0], "to_pixels"], ["pixels"], "pixels_Mul"),
            helper.make_node("Sigmoid", [graph.outputs[0]], ["chances"], "chances_Sigmoid"),
            helper.make_node("Concat", ["pixels", "chances"], ["joined"], "joined_Concat", axis=1),
        ]
    )
    shape = [None if i == 0 else d for i, d in enumerate(before.shape)]
    shape[1] = 2 * before.shape[1]
    del reference.graph.output[:]
    value = helper.make_tensor_value_info("joined", TensorProto.FLOAT, shape)
    reference.graph.output.append(value)
    right = quantized(reference, network.calibration)
    faulty, mended = onnx.ModelProto(), onnx.ModelProto()
    faulty.CopyFrom(right)
    mended.CopyFrom(right)
    add_pair(faulty, "joined", 640.0, is_output=True)
    add_pair(mended, "pixels", 640.0)
    add_pair(mended, "chances", 1.0)
    versions = _Versions(reference, faulty, mended)
    yield _fault(network, "mixed-output/joined", "joined_Concat", {"mixed-scales"}, *versions)


def mixed_concats(network: Network, most: int = 3) -> Iterator[Fault]:
    """One branch of a Concat a 32nd as large, undone behind it, and one scale for all inputs."""
    graph = Graph(network.model)
    joints = [n for n in graph.nodes if n.op_type == "Concat" and len(set(n.inputs)) > 1]
    joints = [
        n
        for n in joints
        if graph.attributes(n).get("axis") == 1
        and all(t in graph.producers and graph.is_float(t) for t in n.inputs)
        and not any(t in graph.outputs for t in n.outputs)
    ]
    for node in spread(joints, most):
        reference = onnx.ModelProto()
        reference.CopyFrom(network.model)
        values = tensors_of(reference, node.inputs, first(network.calibration, 16))
        sizes = [values[t].shape[1] for t in node.inputs]
        undo = np.ones(sum(sizes), np.float32)
        undo[: sizes[0]] = _UNLIKE
        rank = values[node.inputs[0]].ndim
        insert_after(reference, node.outputs[0], "Mul", undo.reshape(-1, *[1] * (rank - 2)))
        small = f"{node.inputs[0]}_small"
        by = numpy_helper.from_array(np.float32(1 / _UNLIKE).reshape(()), f"{small}_by")
        reference.graph.initializer.append(by)
        place = next(i for i, n in enumerate(reference.graph.node) if n.name == node.name)
        made = helper.make_node("Mul", [node.inputs[0], by.name], [small], f"{node.name}_small")
        reference.graph.node[place].input[0] = small
        reference.graph.node.insert(place, made)
        amax = {t: float(np.abs(values[t]).max()) for t in node.inputs[1:]}
        amax[small] = float(np.abs(values[node.inputs[0]]).max() / _UNLIKE)
        right = quantized(reference, network.calibration)
        versions = []
        for shared in (True, False):
            model = onnx.ModelProto()
            model.CopyFrom(right)
            for tensor, largest in amax.items():
                add_pair(model, tensor, max(amax.values()) if shared else largest, reader=node.name)
            versions.append(model)
        at = f"mixed-concat/{node.name}"
        yield _fault(network, at, node.name, {"mixed-scales"}, reference, *versions)


def tensors_of(
    model: onnx.ModelProto, tensors: Sequence[str], samples: Tensors
) -> dict[str, Array]:
    """The values of some tensors in FP32."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    present = {o.name for o in model.graph.output}
    names = [t for t in dict.fromkeys(tensors) if t not in present]
    shown.graph.output.extend(helper.make_empty_tensor_value_info(t) for t in names)
    outputs = [o.name for o in shown.graph.output]
    values = dict(zip(outputs, outputs_of(shown, samples), strict=True))
    return {t: values[t] for t in tensors}


def add_pair(
    model: onnx.ModelProto,
    tensor: str,
    amax: float,
    *,
    reader: str = "",
    is_output: bool = False,
) -> None:
    """A pair of range `amax` behind `tensor`, for all that read it or for the node `reader` alone.
    Where the tensor is an output, `is_output` gives its name to what the pair makes."""
    nodes = list(model.graph.node)
    place = next(i for i, n in enumerate(nodes) if tensor in n.output)
    source, made = tensor, f"{tensor}_restored"
    if is_output:
        source, made = f"{tensor}_exact", tensor
        nodes[place].output[list(nodes[place].output).index(tensor)] = source
    else:
        for node in nodes:
            if reader in ("", node.name):
                node.input[:] = [made if t == tensor else t for t in node.input]
    scale, zero, codes = (f"{tensor}_pair_{x}" for x in ("scale", "zero", "codes"))
    model.graph.initializer.extend(
        [
            numpy_helper.from_array(np.array(amax / 127, np.float32), scale),
            numpy_helper.from_array(np.array(0, np.int8), zero),
        ]
    )
    pair = [
        helper.make_node("QuantizeLinear", [source, scale, zero], [codes], f"{tensor}_pair_q"),
        helper.make_node("DequantizeLinear", [codes, scale, zero], [made], f"{tensor}_pair_dq"),
    ]
    for offset, added in enumerate(pair, start=1):
        model.graph.node.insert(place + offset, added)


# --- places -----------------------------------------------------------------------------------


def close_places(network: Network) -> Iterator[Fault]:
    """The two or three best classes are looked up in a table, and classes come in pairs with nearly
    the same scores. The best two are the same set in another order, the best three another set."""
    made = with_close_classes(network)
    if made is None:
        return
    model, scores, gemm = made
    table = np.random.default_rng(12).normal(size=(10, 8)).astype(np.float32)
    for count, said in ((2, "in another order"), (3, "chooses other indices")):
        chosen = onnx.ModelProto()
        chosen.CopyFrom(model)
        chosen.graph.initializer.extend(
            [
                numpy_helper.from_array(table, "class_table"),
                numpy_helper.from_array(np.array([count], np.int64), "class_count"),
            ]
        )
        chosen.graph.node.extend(
            [
                helper.make_node("TopK", [scores, "class_count"], ["best", "class"], "class_TopK"),
                helper.make_node("Gather", ["class_table", "class"], ["code"], "class_Gather"),
            ]
        )
        del chosen.graph.output[:]
        chosen.graph.output.append(
            helper.make_tensor_value_info("code", TensorProto.FLOAT, ["N", count, 8])
        )
        fault = int8_fault(
            network,
            "close-order" if count == 2 else "close-set",
            gemm,
            culprits={"class_Gather", *(layer.name for layer in network.layers)},
            labels={"index-flip"},
            model=chosen,
            plan=PrecisionPlan(Precision.INT8),
            calib_data=network.calibration,
        )
        yield replace(fault, explained="class_Gather", said=said)
