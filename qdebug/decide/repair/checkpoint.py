"""What a repair has done so far, in the cache folder: one that was killed goes on from there."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from qdebug import __version__
from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.result import SkippedRemedy, Step
from qdebug.decide.repair.setup import Setup
from qdebug.decide.repair.steps import Alternative, Attempt, State
from qdebug.decide.repair.verdict import Judgement
from qdebug.network.graph import Graph
from qdebug.network.layers import find_layers
from qdebug.network.samples.subset import SampleSubset
from qdebug.network.weights import attached, detached, model_digest
from qdebug.plan.plan import Correction, TensorRange, bind_plan, corrections_digest
from qdebug.plan.planfile import plan_to_yaml
from qdebug.result import from_json, to_json
from qdebug.store.cache import discard_arrays, load_arrays, save_arrays
from qdebug.store.manifest import package_versions
from qdebug.types import Array, Precision

_KIND = "repairs"
_CONSTANT = "constant:"
_VERSION = 5


@dataclass(frozen=True)
class Checkpoints:
    """Keeps the states of one repair; `key` is None where they cannot be told from others'."""

    key: str | None
    start: Quantized

    def load(self) -> State | None:
        """The last state that was kept, or None."""
        arrays = load_arrays(_KIND, self.key) if self.key else None
        if arrays is None:
            return None
        try:
            return _state(arrays, self.start)
        except Exception:  # whatever is wrong with it: the repair starts anew
            return None

    def save(self, state: State) -> None:
        """Keep a state in place of the one before."""
        if self.key:
            save_arrays(_KIND, self.key, _arrays(state))

    def discard(self) -> None:
        """Forget it: the repair is done."""
        if self.key:
            discard_arrays(_KIND, self.key)


def checkpoints(setup: Setup, sequence: tuple[str, ...], cached: bool) -> Checkpoints:
    """Those of one repair, by all that decides what its steps do."""
    metric = setup.metric.key if setup.metric else ""
    if not cached or metric is None:
        return Checkpoints(None, setup.start)
    operators = setup.context.sessions.operators_digest
    versions = {n: v for n, v in package_versions(operators).items() if n.startswith("onnxruntime")}
    target = setup.target
    parts = [
        str(_VERSION),
        __version__,
        model_digest(setup.start.graph.proto),
        plan_to_yaml(setup.start.bound.plan),
        corrections_digest(setup.start.bound),
        _executions(setup.fitting),
        _executions(setup.choosing),
        metric,
        repr((target.condition, target.allowed, target.higher_is_better)) if target else "",
        " ".join(sequence),
        f"{platform.machine()} {versions} {setup.context.fp16_kernels}",
        setup.method,
        str(setup.search.memory_budget),
        str(setup.keep_undecided),
    ]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return Checkpoints(key, setup.start)


def question_of(setup: Setup) -> str:
    """A digest of what a repair is to reach, in which model, on which samples; "" where the metric
    cannot be told from others."""
    metric, target = setup.metric.key if setup.metric else "", setup.target
    if metric is None:
        return ""
    parts = [
        model_digest((setup.given or setup.reference).graph.proto),
        str(setup.start.bound.plan.precision),
        setup.choosing.key,
        setup.proving.key,
        metric,
        repr((target.condition, target.allowed, target.higher_is_better)) if target else "",
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _executions(subset: SampleSubset) -> str:
    """Which samples, and in which executions."""
    return f"{subset.key} {[batch.count for batch in subset.batches]}"


def _arrays(state: State) -> dict[str, Array]:
    text = {
        "waiting": [[a.remedy, a.layers, a.depth] for a in state.waiting],
        "steps": to_json(state.steps),
        "skipped": to_json(state.skipped),
        "best": None if state.best is None else _kept_of(state.best),
        "alternatives": [[one.steps, _kept_of(one.judged)] for one in state.alternatives],
    }
    networks = {
        f"{number}/{name}": array
        for number, one in enumerate(state.alternatives)
        for name, array in arrays_of(one.network).items()
    }
    return {"state": _packed(text), **networks}


def _state(arrays: dict[str, Array], start: Quantized) -> State:
    text = _unpacked(arrays["state"])
    alternatives = []
    for number, (steps, judged) in enumerate(text["alternatives"]):
        own = {
            name.removeprefix(f"{number}/"): array
            for name, array in arrays.items()
            if name.startswith(f"{number}/")
        }
        network = network_of(own, start)
        alternatives.append(Alternative(tuple(steps), network, _judgement(judged)))
    state = State(
        network=start,
        waiting=tuple(
            Attempt(name, None if layers is None else tuple(layers), depth)
            for name, layers, depth in text["waiting"]
        ),
        steps=tuple(from_json(Step, step) for step in text["steps"]),
        best=None if text["best"] is None else _judgement(text["best"]),
        skipped=tuple(from_json(SkippedRemedy, entry) for entry in text["skipped"]),
        alternatives=tuple(alternatives),
    )
    in_turn = [one.network for one in alternatives if one.steps == state.in_turn]
    return replace(state, network=in_turn[0]) if in_turn else state


def _kept_of(judged: Judgement) -> list[Any]:
    """As much of a judgement as others are compared with."""
    arrays = judged.noise_db, judged.left_out, judged.losses
    return [judged.metric, *(array.tolist() for array in arrays)]


def _judgement(kept: list[Any]) -> Judgement:
    metric, noise_db, left_out, losses = kept
    return Judgement({}, metric, np.array(noise_db), np.array(left_out), np.array(losses))


def arrays_of(network: Quantized) -> dict[str, Array]:
    """All of a network that a repair changes, for `network_of` in this process or another."""
    bound = network.bound
    plan = bound.plan
    text = {
        "layers": {name: str(p) for name, p in plan.layers.items()},
        "tensors": {t: [entry.amax, entry.method] for t, entry in plan.tensors.items()},
        "origins": {name: list(users) for name, users in network.model.origins.items()},
        "calibrated": sorted(bound.calibrated),
        "corrected": list(bound.corrections),
    }
    light, made = detached(network.graph.proto)
    arrays: dict[str, Array] = {
        "network": _packed(text),
        "model": np.frombuffer(light.SerializeToString(), np.uint8),
        **{f"{_CONSTANT}{name}": values for name, values in made.items()},
    }
    for number, correction in enumerate(bound.corrections.values()):
        for kind, values in (("weight", correction.weight), ("bias", correction.bias)):
            if values is not None:
                arrays[f"{kind}{number}"] = values
    return arrays


def network_of(arrays: Mapping[str, Array], start: Quantized) -> Quantized:
    """What `arrays_of` took apart; `start` is what the repair started from.

    Raises:
        Exception: anything, where they are damaged.
    """
    text = _unpacked(arrays["network"])
    light = onnx.ModelProto.FromString(arrays["model"].tobytes())
    made = {n.removeprefix(_CONSTANT): a for n, a in arrays.items() if n.startswith(_CONSTANT)}
    graph = Graph(attached(light, made))
    origins = {name: tuple(users) for name, users in text["origins"].items()}
    model = replace(start.model, graph=graph, origins=origins)
    plan = replace(
        start.bound.plan,
        layers={name: Precision(p) for name, p in text["layers"].items()},
        tensors={t: _range(amax, method) for t, (amax, method) in text["tensors"].items()},
    )
    corrections = {
        name: Correction(arrays.get(f"weight{number}"), arrays.get(f"bias{number}"))
        for number, name in enumerate(text["corrected"])
    }
    bound = bind_plan(plan, model, find_layers(graph))
    calibrated = frozenset(text["calibrated"])
    return Quantized(model, replace(bound, corrections=corrections, calibrated=calibrated))


def _packed(text: object) -> Array:
    return np.frombuffer(json.dumps(text).encode(), np.uint8)


def _unpacked(array: Array) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(array.tobytes())
    return found


def _range(amax: float | list[float], method: str) -> TensorRange:
    return TensorRange(tuple(amax) if isinstance(amax, list) else amax, method)
