"""Ranges that do not fit: wrong ones, those of other data, those of another network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from planted_network import Fault, Network, calibrated, int8_fault, spread

from qdebug.network.graph import Graph
from qdebug.network.layers import find_layers
from qdebug.plan.plan import PrecisionPlan, TensorRange
from qdebug.types import Array, Precision, Tensors

# --- ranges ---------------------------------------------------------------------------------


def wrong_ranges(network: Network, most: int = 4) -> Iterator[Fault]:
    """One range eight times too large, or too small."""
    for tensor in spread(network.quantized(), most):
        amax = float(np.max(network.plan.tensors[tensor].amax))
        for kind, factor, labels in (
            ("amax-times-8", 8.0, {"stale-calibration"}),
            ("amax-by-8", 1 / 8, {"clipping"}),
        ):
            yield int8_fault(
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
    return int8_fault(
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
        yield int8_fault(
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
