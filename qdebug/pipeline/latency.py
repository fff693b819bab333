"""What layers cost in milliseconds, from the profile of an engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from qdebug.errors import UsageError
from qdebug.pipeline.subject import Subject
from qdebug.plan.plan import layer_aliases
from qdebug.run.tensorrt.inspect.layers import EngineInfo, EngineLayer
from qdebug.run.tensorrt.inspect.opening import open_engine_file, open_profile
from qdebug.run.tensorrt.inspect.profile import info_of_profile, with_times
from qdebug.search.cost import Costs, latency_costs
from qdebug.types import Precision

_KNOWN = {"int8": Precision.INT8, "fp16": Precision.FP16, "fp32": Precision.FP32}


def profiled_costs(profile: Path, layers_file: str | None, subject: Subject, work: Costs) -> Costs:
    """The measured time of every layer, scaled to other precisions by its `work`.

    The time of a kernel that fuses several layers is split among them by their work.

    Raises:
        UsageError: a file that is none, or a profile that names no layer of the model.
    """
    times = open_profile(profile)
    if layers_file:
        info = with_times(open_engine_file(Path(layers_file)), times, str(profile))
    else:
        info = info_of_profile(times)
    costs = costs_of(info, subject, work)
    if costs is None:
        raise UsageError(
            f"--profile: no time in {profile} belongs to a layer of the model",
            "Give the layer information of the same engine with --profile-layers.",
        )
    return costs


def costs_of(info: EngineInfo, subject: Subject, work: Costs) -> Costs | None:
    """The same from an engine whose layers carry times; None where none belongs to a layer."""
    aliases = layer_aliases(subject.model, subject.layers)
    spent: dict[str, float] = defaultdict(float)
    measured_in = dict(subject.precisions)
    for kernel in info.layers:
        owners = {aliases[node].name for node in kernel.onnx_nodes if node in aliases}
        for name, part in _parts(owners, work, subject.precisions).items():
            spent[name] += part * (kernel.time_ms or 0.0)
            measured_in[name] = _KNOWN.get(_precision(info, kernel), measured_in[name])
    return latency_costs(spent, measured_in, work) if spent else None


def _precision(info: EngineInfo, kernel: EngineLayer) -> str:
    return kernel.precision if info.detailed else ""


def _parts(owners: set[str], work: Costs, precisions: Mapping[str, Precision]) -> dict[str, float]:
    """Each layer's part of their kernel, by their work."""
    weights = {name: work.by_layer[name][precisions[name]] for name in sorted(owners)}
    total = sum(weights.values())
    return {name: weight / total if total else 1 / len(weights) for name, weight in weights.items()}
