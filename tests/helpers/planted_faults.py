"""Real networks with one fault each, planted where a debugger has to find it.

Every fault says which layers are right culprits and which labels are right. What a plan, a
calibration or a network becomes is all that is changed: the function of the FP32 network stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

import qdebug
from qdebug.network.graph import Graph, Node
from qdebug.network.layers import Layer, Layers, find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import Model, prepare_model
from qdebug.network.weights import with_data
from qdebug.plan.lower import lower
from qdebug.plan.plan import PrecisionPlan, TensorRange, bind_plan
from qdebug.results.compare import CompareResult
from qdebug.types import Array, Precision, Tensors

HALF_MAX = 65504.0


@dataclass(frozen=True)
class Network:
    """A network without a fault.

    Attributes:
        name: what cases are called by.
        prepared: what qdebug reads of its file.
        calibration, samples: its inputs, by name.
        plan: INT8 with ranges by minmax of `calibration`.
    """

    name: str
    prepared: Model
    calibration: Tensors
    samples: Tensors
    plan: PrecisionPlan

    @property
    def model(self) -> onnx.ModelProto:
        """The network as qdebug prepares it."""
        return self.prepared.graph.proto

    @cached_property
    def layers(self) -> Layers:
        """Its layers."""
        return find_layers(self.prepared.graph)

    @cached_property
    def calibration_outputs(self) -> list[Array]:
        """What FP32 makes of the calibration samples."""
        return outputs_of(self.model, self.calibration)

    def readers(self, tensor: str) -> frozenset[str]:
        """The INT8 layers that quantize `tensor`."""
        return frozenset(x.name for x in self.layers if tensor in x.quantized_inputs)

    def quantized(self) -> list[str]:
        """The activations that INT8 layers read, in execution order."""
        return list(dict.fromkeys(t for x in self.layers for t in x.quantized_inputs))


@dataclass(frozen=True)
class Fault:
    """A network with one fault.

    Attributes:
        kind: of the fault.
        place: where it is; with the network's name and the kind it makes the case's id.
        culprits: layers that may rightly stand first.
        labels: causes that are right.
        settings: what `qdebug.compare` is told.
        explained: the layer whose cause must be right; "" for the highest ranked culprit.
    """

    kind: str
    network: str
    place: str
    culprits: frozenset[str]
    labels: frozenset[str]
    settings: Mapping[str, Any] = field(repr=False)
    explained: str = ""

    def main_cause(self, result: CompareResult) -> str:
        """The label that the layer in question got, "" for none."""
        wanted = {self.explained} if self.explained else self.culprits
        layer = next((x for x in result.layers if x.name in wanted), None)
        return layer.causes[0].label if layer and layer.causes else ""

    @property
    def id(self) -> str:
        """The same in every run."""
        return f"{self.network}/{self.kind}/{self.place}"

    @property
    def held_out(self) -> bool:
        """Whether it is counted only at the end."""
        return hashlib.sha256(self.id.encode()).digest()[0] % 2 == 1


def cost_db(found: CompareResult, base: CompareResult) -> float:
    """What a fault costs: how much the outputs' error, relative to their signal and added up over
    them, grows."""
    return float(10 * np.log10(_noise(found) / _noise(base)))


def _noise(result: CompareResult) -> float:
    if not all(t.metrics.is_finite for t in result.outputs):
        return float("inf")
    return sum(10 ** (-t.metrics.sqnr_db / 10) for t in result.outputs)


def load(name: str, path: Path, calibration: Path, samples: Path, count: int) -> Network:
    """A network, its plan, and `count` of its samples; of the samples what is an input."""
    prepared = prepare_model(read_model(str(path)))
    proto = with_data(prepared.graph.proto)
    inputs = {value.name for value in proto.graph.input}
    calib = _arrays(calibration, inputs)
    plan = PrecisionPlan(Precision.INT8, tensors=calibrated(proto, calib))
    return Network(name, prepared, calib, first(_arrays(samples, inputs), count), plan)


def calibrated(model: onnx.ModelProto, data: Tensors) -> dict[str, TensorRange]:
    """The ranges by minmax of what INT8 layers read."""
    return dict(qdebug.calibrate(model, calib_data=data, method="minmax").chosen.ranges)


def first(samples: Tensors, count: int) -> Tensors:
    """The first `count` samples."""
    return {name: array[:count] for name, array in samples.items()}


def healthy(network: Network, precision: str = "int8") -> dict[str, Any]:
    """What `qdebug.compare` is told of a network without a fault."""
    plan = network.plan if precision == "int8" else PrecisionPlan(Precision(precision))
    return {"model": network.model, "inputs": network.samples, "plan": plan, "cache": False}


def outputs_of(model: onnx.ModelProto, samples: Tensors) -> list[Array]:
    """What ONNX Runtime makes of `samples`, one at a time where the model wants that."""
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    size = session.get_inputs()[0].shape[0]
    count = len(next(iter(samples.values())))
    step = size if isinstance(size, int) else count
    batches = [
        session.run(None, {name: array[i : i + step] for name, array in samples.items()})
        for i in range(0, count, step)
    ]
    return [np.concatenate(parts) for parts in zip(*batches, strict=True)]


def _arrays(path: Path, wanted: set[str]) -> dict[str, Array]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files if name in wanted}


def _fault(network: Network, kind: str, place: str, **rest: Any) -> Fault:
    """A fault of INT8; `rest` are `culprits`, `labels`, and what is not as in the healthy one."""
    culprits, labels = frozenset(rest.pop("culprits")), frozenset(rest.pop("labels"))
    return Fault(kind, network.name, place, culprits, labels, {**healthy(network), **rest})


def _spread(items: Sequence[Any], most: int) -> list[Any]:
    """At most `most` of the items, evenly spread."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


# --- ranges ---------------------------------------------------------------------------------


def wrong_ranges(network: Network, most: int = 4) -> Iterator[Fault]:
    """One range eight times too large, or too small."""
    for tensor in _spread(network.quantized(), most):
        amax = float(np.max(network.plan.tensors[tensor].amax))
        for kind, factor, labels in (
            ("amax-times-8", 8.0, {"stale-calibration"}),
            ("amax-by-8", 1 / 8, {"clipping"}),
        ):
            yield _fault(
                network,
                kind,
                tensor,
                culprits=network.readers(tensor),
                labels=labels,
                plan=_with_ranges(network, {tensor: amax * factor}),
            )


def _with_ranges(network: Network, ranges: Mapping[str, float], method: str = "manual") -> Any:
    tensors = {name: TensorRange(amax, method) for name, amax in ranges.items()}
    return replace(network.plan, tensors={**network.plan.tensors, **tensors})


# --- calibration data -----------------------------------------------------------------------


def wrong_calibration(network: Network) -> Iterator[Fault]:
    """Calibration samples that lack classes, or were prepared in another way."""
    floats = [n for n, a in network.calibration.items() if np.issubdtype(a.dtype, np.floating)]
    if not floats:
        return
    changes: dict[str, tuple[Callable[[Array], Array], set[str]]] = {
        "times-255": (lambda x: x * 255, {"stale-calibration"}),
        "by-255": (lambda x: x / 255, {"stale-calibration"}),
        "mean-std": (
            lambda x: (x - 0.45) / 0.22,
            {"stale-calibration", "unrepresentative-calibration"},
        ),
    }
    for place, (change, labels) in changes.items():
        data = {
            name: change(array).astype(array.dtype) if name in floats else array
            for name, array in network.calibration.items()
        }
        yield _calibrated(network, "calibration-scale", place, data, labels)
    for place, data in _without_classes(network):
        labels = {"unrepresentative-calibration"}
        yield _calibrated(network, "calibration-class", place, data, labels)


def _calibrated(network: Network, kind: str, place: str, data: Tensors, labels: set[str]) -> Fault:
    """Calibrated on `data`: any layer that reads a tensor whose range is no longer within a quarter
    of the right one may stand first."""
    calibration = calibrated(network.model, data)
    changed = {
        tensor
        for tensor, entry in calibration.items()
        if tensor in network.plan.tensors and _is_off(network, tensor, float(np.max(entry.amax)))
    }
    return _fault(
        network,
        kind,
        place,
        culprits={name for tensor in changed for name in network.readers(tensor)},
        labels=labels,
        plan=PrecisionPlan(Precision.INT8),
        calib_data=data,
    )


def _is_off(network: Network, tensor: str, amax: float, factor: float = 1.1) -> bool:
    right = float(np.max(network.plan.tensors[tensor].amax))
    return not right / factor <= amax <= right * factor


def _without_classes(network: Network) -> Iterator[tuple[str, Tensors]]:
    """The calibration samples without one class, without half of them, and of one class alone."""
    scores = network.calibration_outputs[0]
    while scores.ndim > 2:
        scores = scores[..., 0] if scores.shape[-1] == 1 else scores.mean(axis=-1)
    labels = scores.argmax(axis=1)
    present = np.unique(labels)
    if len(present) < 6:
        return
    kept = {
        "lacks-1": present[present != _widest_class(network, labels)],
        "lacks-half": present[: len(present) // 2],
        "only-1": present[1:2],
    }
    for place, classes in kept.items():
        chosen = np.isin(labels, classes)
        if chosen.sum() >= 4:
            yield place, {name: array[chosen] for name, array in network.calibration.items()}


def _widest_class(network: Network, labels: Array) -> int:
    """The class without which the ranges shrink most."""
    lost = {}
    for one in np.unique(labels):
        rest = {name: array[labels != one] for name, array in network.calibration.items()}
        ranges = calibrated(network.model, rest)
        found = np.array([float(np.max(ranges[t].amax)) for t in network.quantized()])
        lost[int(one)] = float(np.log(found + 1e-12).sum())
    return min(lost, key=lambda one: lost[one])


def stale_caches(network: Network) -> Iterator[Fault]:
    """Ranges under the right names, of other weights or of another network."""
    rng = np.random.default_rng(7)
    needed = network.quantized()
    right = np.array([float(np.max(network.plan.tensors[t].amax)) for t in needed])
    found = {
        "other-weights": _ranges_with(network, _shuffled_weights(network.model, rng)),
        "other-network": dict(zip(needed, rng.permutation(right).tolist(), strict=True)),
        "older-training": _ranges_with(network, _scaled_weights(network.model, rng)),
    }
    for place, ranges in found.items():
        changed = {t: a for t, a in ranges.items() if _is_off(network, t, a)}
        yield _fault(
            network,
            "stale-cache",
            place,
            culprits={name for tensor in changed for name in network.readers(tensor)},
            labels={"stale-calibration"},
            plan=_with_ranges(network, ranges, "minmax"),
        )


def _ranges_with(network: Network, other: onnx.ModelProto) -> dict[str, float]:
    found = calibrated(other, network.calibration)
    return {t: float(np.max(found[t].amax)) for t in network.quantized() if t in found}


def _shuffled_weights(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    """Every weight's values in another order."""

    def change(values: Array) -> Array:
        return rng.permutation(values.ravel()).reshape(values.shape)

    return _changed_weights(model, change)


def _scaled_weights(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    """Every weight between half and three times as large, as after other training."""

    def change(values: Array) -> Array:
        return values * np.float32(np.exp(rng.uniform(np.log(0.5), np.log(3))))

    return _changed_weights(model, change)


def _changed_weights(model: onnx.ModelProto, change: Callable[[Array], Array]) -> onnx.ModelProto:
    weights = {layer.weight for layer in find_layers(Graph(model)) if layer.weight}
    other = onnx.ModelProto()
    other.CopyFrom(model)
    for tensor in other.graph.initializer:
        if tensor.name in weights:
            values = change(numpy_helper.to_array(tensor)).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return other


# --- weights --------------------------------------------------------------------------------


def unequal_channels(network: Network, most: int = 3, factor: float = 64.0) -> Iterator[Fault]:
    """One channel `factor` times as large, undone by the weights of all that read it."""
    planted = []
    for tensor in network.quantized():
        edit = ChannelEdit(network.model)
        if edit.scale(tensor, factor) and network.readers(tensor):
            planted.append((tensor, edit.model))
    for tensor, model in _spread(planted, most):
        after = outputs_of(model, first(network.calibration, 4))
        before = [a[:4] for a in network.calibration_outputs]
        if not all(
            np.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(before, after, strict=True)
        ):
            raise AssertionError(f"{network.name}: {tensor}: another function")
        yield _fault(
            network,
            "channel-times-64",
            tensor,
            culprits=network.readers(tensor),
            labels={"coarse-step"},
            model=model,
            plan=PrecisionPlan(Precision.INT8),
            calib_data=network.calibration,
        )


_PASS = frozenset(
    {"Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "Identity", "Dropout"}
)
"""Operators that a positive factor of one channel passes through."""


class ChannelEdit:
    """A model in which one channel of a tensor is scaled and what reads it undoes that."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.graph = Graph(model)
        self._constants = {t.name: t for t in self.model.graph.initializer}
        self._scaled: set[str] = set()

    def scale(self, tensor: str, factor: float) -> bool:
        """Scale the middle channel; False where the network has no place to undo it."""
        node = self.graph.producers.get(tensor)
        while node is not None and node.op_type in _PASS:
            tensor = node.inputs[0]
            node = self.graph.producers.get(tensor)
        if node is None or tensor in self.graph.outputs:
            return False
        return self._source(node, tensor, factor) and self._readers(tensor, 1 / factor)

    def _source(self, node: Node, tensor: str, factor: float) -> bool:
        """Scale the channel where `node` makes it."""
        kind = node.op_type
        if kind == "Add":
            constant, other = _constant_of(self.graph, node)
            producer = self.graph.producers.get(other)
            alone = len(self.graph.consumers.get(other, ())) == 1
            if not (constant and producer and alone and self._is_vector(constant)):
                return False
            return self._source(producer, other, factor) and self._by(constant, -1, factor)
        if kind in ("Mul", "LayerNormalization"):
            names = [t for t in node.inputs if t in self._constants]
            known = kind == "LayerNormalization" or self.graph.consumers[tensor]
            if not known or not names or not all(self._is_vector(t) for t in names):
                return False
            return all(self._by(t, -1, factor) for t in names)
        axis = {"Conv": 0, "MatMul": -1, "Gemm": -1}.get(kind)
        if axis is None or node.inputs[1] not in self._constants:
            return False
        if kind == "Gemm" and _flag(self.model, node, "transB"):
            axis = 0
        parts = [self._by(node.inputs[1], axis, factor)]
        parts += [self._by(t, -1, factor) for t in node.inputs[2:]]
        return all(parts)

    def _readers(self, tensor: str, factor: float) -> bool:
        """Undo the channel in everything that reads it."""
        readers = self.graph.consumers.get(tensor, ())
        return bool(readers) and all(self._undo(n, tensor, factor) for n in readers)

    def _undo(self, node: Node, tensor: str, factor: float) -> bool:
        if node.op_type in _PASS:
            return node.outputs[0] not in self.graph.outputs and self._readers(
                node.outputs[0], factor
            )
        if node.op_type not in ("Conv", "MatMul", "Gemm") or node.inputs[0] != tensor:
            return False
        weight = node.inputs[1]
        if weight not in self._constants:
            return False
        axis = {"Conv": 1, "MatMul": -2, "Gemm": -2}[node.op_type]
        if node.op_type == "Gemm" and _flag(self.model, node, "transB"):
            axis = 1
        if node.op_type == "Conv" and self._constants[weight].dims[1] == 1:
            axis = 0  # depthwise
        return self._by(weight, axis, factor)

    def _is_vector(self, name: str) -> bool:
        return sum(d != 1 for d in self._constants[name].dims) == 1

    def _by(self, name: str, axis: int, factor: float) -> bool:
        """Scale the middle channel of a constant, once."""
        tensor = self._constants.get(name)
        if tensor is None or name in self._scaled or len(self.graph.consumers[name]) > 1:
            return False
        values = numpy_helper.to_array(tensor).copy()
        if values.ndim < abs(axis) or values.shape[axis] < 4:
            return False
        along = np.moveaxis(values, axis, 0)
        along[values.shape[axis] // 2] *= np.float32(factor)
        tensor.CopyFrom(numpy_helper.from_array(values, name))
        self._scaled.add(name)
        return True


def _constant_of(graph: Graph, node: Node) -> tuple[str, str]:
    """The constant operand of a binary node, "" for none, and the other one."""
    a, b = node.inputs
    return (b, a) if b in graph.initializers else (a, b) if a in graph.initializers else ("", a)


def _flag(model: onnx.ModelProto, node: Node, name: str) -> bool:
    proto = next(n for n in model.graph.node if n.name == node.name)
    return any(a.name == name and a.i for a in proto.attribute)


def one_scale(network: Network, most: int = 3, factor: float = 64.0) -> Iterator[Fault]:
    """A weight with one scale, one channel of which is `factor` times as large; a product behind
    the layer undoes it. With a scale for each channel it would do no harm."""
    layers = [x for x in network.layers if x.quantizable and x.weight and len(x.nodes) == 1]
    for layer in _spread(layers, most):
        found = _with_large_channel(network, layer, factor)
        if found is None:
            continue
        model, amax = found
        assert layer.weight is not None
        yield _fault(
            network,
            "one-weight-scale",
            layer.name,
            culprits={layer.name},
            labels={"weight-range"},
            model=model,
            plan=replace(
                network.plan,
                tensors={
                    **network.plan.tensors,
                    layer.weight: TensorRange(amax),
                },
            ),
        )


def _with_large_channel(
    network: Network, layer: Layer, factor: float
) -> tuple[onnx.ModelProto, float] | None:
    graph = Graph(network.model)
    node = graph.by_name[layer.name]
    axis = {"Conv": 0, "MatMul": -1, "Gemm": -1}.get(layer.op_type)
    if axis is None or layer.weight is None or layer.weight != node.inputs[1]:
        return None
    if layer.op_type == "Gemm" and _flag(network.model, node, "transB"):
        axis = 0
    edit = ChannelEdit(network.model)
    if not edit._by(layer.weight, axis, factor):
        return None
    if not all(edit._by(t, -1, factor) for t in node.inputs[2:]):
        return None
    weight = numpy_helper.to_array(edit._constants[layer.weight])
    channels = weight.shape[axis]
    undo = np.ones(channels, np.float32)
    undo[channels // 2] = 1 / factor
    if layer.op_type == "Conv":
        undo = undo.reshape(-1, *([1] * (weight.ndim - 2)))
    _insert_after(edit.model, node.outputs[0], "Mul", undo)
    return edit.model, float(np.abs(weight).max())


def _insert_after(model: onnx.ModelProto, tensor: str, kind: str, constant: Array) -> None:
    """`kind` with a constant between `tensor`'s producer and all that read it; the result keeps
    the name `tensor`."""
    raw, name = f"{tensor}_raw", f"{tensor}_undo"
    nodes = list(model.graph.node)
    position = next(i for i, n in enumerate(nodes) if tensor in n.output)
    producer = nodes[position]
    producer.output[list(producer.output).index(tensor)] = raw
    model.graph.initializer.append(numpy_helper.from_array(constant, name))
    node = helper.make_node(kind, [raw, name], [tensor], f"{producer.name}_{kind.lower()}")
    model.graph.node.insert(position + 1, node)
    kept = [v for v in model.graph.value_info if v.name != raw]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)


# --- FP16 -----------------------------------------------------------------------------------


def overflowing_norms(network: Network, most: int = 3) -> Iterator[Fault]:
    """A residual stream so large that its squares, inside a layer normalization that is written
    out, leave FP16's range; the normalization undoes the scale."""
    whole = decomposed(network.model)
    graph = Graph(whole)
    squares = [n for n in graph.nodes if n.op_type == "Pow" and _is_square(graph, n)]
    for square in _spread(squares, most):
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
    lowered = lower(bind_plan(network.plan, network.prepared, network.layers)).graph.proto
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
    for node, low, high in _spread(wrong, most):
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
    graph = Graph(network.model)
    node = graph.producers.get(graph.outputs[0])
    if node is None or node.op_type != "Gemm" or len(graph.outputs) > 1:
        return
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    axis = 0 if _flag(model, node, "transB") else 1
    rng = np.random.default_rng(11)
    for tensor in model.graph.initializer:
        if tensor.name in node.inputs[1:]:
            values = numpy_helper.to_array(tensor).copy()
            classes = np.moveaxis(values, axis if values.ndim > 1 else 0, 0)
            near = classes[::2][: len(classes[1::2])]
            spread = 0.01 * values.std() if values.ndim > 1 else 0.0
            classes[1::2] = near + rng.normal(scale=spread, size=near.shape)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    scores = graph.outputs[0]
    table = rng.normal(size=(10, 8)).astype(np.float32)
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
    fault = _fault(
        network,
        "close-scores",
        node.name,
        culprits={"class_Gather", *(layer.name for layer in network.layers)},
        labels={"index-flip"},
        model=model,
        plan=PrecisionPlan(Precision.INT8),
        calib_data=network.calibration,
    )
    yield replace(fault, explained="class_Gather")


def all_faults(network: Network) -> Iterator[Fault]:
    """Every fault that can be planted into `network`."""
    yield from wrong_ranges(network)
    yield from wrong_calibration(network)
    yield from stale_caches(network)
    yield from unequal_channels(network)
    yield from one_scale(network)
    yield from overflowing_norms(network)
    yield from misplaced_pairs(network)
    yield from close_scores(network)
