"""Real networks with one fault each, planted where a debugger has to find it.

Every fault says which layers are right culprits and which labels are right. What a plan, a
calibration or a network becomes is all that is changed: the function of the FP32 network stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import qdebug
from qdebug.network.layers import Layers, find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import Model, prepare_model
from qdebug.network.weights import with_data
from qdebug.plan.plan import PrecisionPlan, TensorRange
from qdebug.results.compare import Cause, CompareResult
from qdebug.types import Array, Precision, Tensors


@dataclass(frozen=True)
class Network:
    """A network without a fault.

    Attributes:
        name: what cases are called by.
        prepared: what qdebug reads of its file.
        calibration, samples, unseen: its inputs, by name; `unseen` takes part in nothing but what
            an advice is measured on.
        plan: INT8 with ranges by minmax of `calibration`.
    """

    name: str
    prepared: Model
    calibration: Tensors
    samples: Tensors
    unseen: Tensors
    plan: PrecisionPlan

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The network as qdebug prepares it, with the weights that its file keeps beside it."""
        return with_data(self.prepared.graph.proto)

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
        said: words that its evidence must have.
        mended: what `qdebug.compare` is told of the same network without the fault; None for the
            network as it was.
    """

    kind: str
    network: str
    place: str
    culprits: frozenset[str]
    labels: frozenset[str]
    settings: Mapping[str, Any] = field(repr=False)
    explained: str = ""
    said: str = ""
    mended: Mapping[str, Any] | None = field(default=None, repr=False)

    def main_cause(self, result: CompareResult) -> Cause | None:
        """The first cause of the layer in question, None for none."""
        wanted = {self.explained} if self.explained else self.culprits
        layer = next((x for x in result.layers if x.name in wanted), None)
        return layer.causes[0] if layer and layer.causes else None

    def is_named(self, result: CompareResult) -> bool:
        """Whether that cause is right."""
        cause = self.main_cause(result)
        return cause is not None and cause.label in self.labels and self.said in cause.evidence

    @property
    def id(self) -> str:
        """The same in every run."""
        return f"{self.network}/{self.kind}/{self.place}"

    @property
    def held_out(self) -> bool:
        """Whether it is counted only at the end."""
        return hashlib.sha256(self.id.encode()).digest()[0] % 2 == 1


def cost_db(faulty: CompareResult, base: CompareResult) -> float:
    """What a fault costs: how much the outputs' error grows, relative to their signal, each output
    by its worst part."""
    return float(10 * np.log10(faulty.worst_noise / base.worst_noise))


def load(name: str, path: Path, calibration: Path, samples: Path, count: int) -> Network:
    """A network, its plan, and `count` of its samples, twice; of the samples what is an input."""
    prepared = prepare_model(read_model(str(path)))
    proto = with_data(prepared.graph.proto)
    inputs = {value.name for value in proto.graph.input}
    calib, rest = _arrays(calibration, inputs), _arrays(samples, inputs)
    plan = PrecisionPlan(Precision.INT8, tensors=calibrated(proto, calib))
    unseen = {k: v[count : 2 * count] for k, v in rest.items()}
    return Network(name, prepared, calib, first(rest, count), unseen, plan)


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


def int8_fault(network: Network, kind: str, place: str, **rest: Any) -> Fault:
    """A fault of INT8; `rest` are `culprits`, `labels`, and what is not as in the healthy one."""
    culprits, labels = frozenset(rest.pop("culprits")), frozenset(rest.pop("labels"))
    return Fault(kind, network.name, place, culprits, labels, {**healthy(network), **rest})


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """At most `most` of the items, evenly spread."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]
