"""What layers cost in milliseconds, from the profile of an engine or a run that measured one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from qdebug.backends.tensorrt.serialized import read_engine
from qdebug.engine_info.files.opening import open_engine_file, open_profile
from qdebug.engine_info.files.timing import info_of_profile, with_times
from qdebug.engine_info.layers import EngineInfo
from qdebug.engine_info.measurements import LayerTime
from qdebug.errors import UsageError, given_by
from qdebug.formats.registry import FORMAT_OF
from qdebug.inmemory import InMemory
from qdebug.network.load import ModelFile
from qdebug.plan.cost import Costs, latency_costs
from qdebug.plan.pair import ModelPair
from qdebug.plan.select import layer_aliases
from qdebug.results.compare import CompareResult
from qdebug.results.engine import KernelTime
from qdebug.results.recorded import Run, is_run_file
from qdebug.types import Precision
from qdebug.wording import option

_HOW = "Run `compare` on the GPU with an engine, and write a run file."
_KNOWN = {str(precision): precision for precision in FORMAT_OF}


def read_kernels(profile: str, layers_file: str | None, model: ModelFile) -> tuple[KernelTime, ...]:
    """The kernels of a profiled engine of `model`, with their times.

    Args:
        profile: of trtexec, or a run file of an engine that was executed, or its result in memory.
        layers_file: layer information or build log of the engine that was profiled.

    Raises:
        UsageError: a file of another kind, or a run without an engine or of another model.
        StoreError: a run file that cannot be read.
    """
    if is_run_file(profile):
        if layers_file:
            raise UsageError(
                f"{option('profile_layers')}: the run {profile} already says what its layers are",
                "Leave it out.",
                code="QD-USAGE-PROFILE",
            )
        with given_by("profile"):
            return kernels_of_run(profile, model)
    with given_by("profile"):
        times = open_profile(Path(profile))
    if not layers_file:
        return _kernels(info_of_profile(times))
    with given_by("profile_layers"):
        info = open_engine_file(Path(layers_file), read_engine)
    return _kernels(with_times(info, times, profile))


def profiled_costs(
    kernels: Sequence[KernelTime], profile: str, pair: ModelPair, work: Costs
) -> Costs:
    """The measured time of every layer, scaled to other precisions by its `work`.

    The time of a kernel that fuses several layers is split among them by their work.

    Args:
        profile: the file that `kernels` were read from.

    Raises:
        UsageError: the profile names no layer of the model.
    """
    costs = costs_of(kernels, pair, work)
    if costs is None:
        raise UsageError(
            f"{option('profile')}: no time in {profile} belongs to a layer of the model",
            f"Give the layer information of the same engine with {option('profile_layers')}.",
            code="QD-USAGE-PROFILE-LAYERS",
        )
    return costs


def costs_of(kernels: Sequence[KernelTime], pair: ModelPair, work: Costs) -> Costs | None:
    """The same from the kernels of an engine; None where no time belongs to a layer."""
    aliases = layer_aliases(pair.model, pair.layers)
    spent: dict[str, float] = defaultdict(float)
    measured_in = dict(pair.precisions)
    for kernel in kernels:
        owners = {aliases[node].name for node in kernel.onnx_nodes if node in aliases}
        for name, part in _parts(owners, work, pair.precisions).items():
            spent[name] += part * kernel.ms
            measured_in[name] = _KNOWN.get(kernel.precision, measured_in[name])
    return latency_costs(spent, measured_in, work) if spent else None


def kernel_times(info: EngineInfo | None, times: Sequence[LayerTime]) -> tuple[KernelTime, ...]:
    """The times measured for an engine's layers, with what `info` says of them; where it has none
    of these names, with what the names alone say."""
    if not times:
        return ()
    if info is not None:
        with suppress(UsageError):
            return _kernels(with_times(info, times, "the engine's own profile"))
    return _kernels(info_of_profile(times))


def _kernels(info: EngineInfo) -> tuple[KernelTime, ...]:
    return tuple(
        KernelTime(
            layer.name,
            layer.time_ms or 0.0,
            layer.onnx_nodes,
            layer.precision if info.detailed else "",
        )
        for layer in info.layers
    )


def _parts(owners: set[str], work: Costs, precisions: Mapping[str, Precision]) -> dict[str, float]:
    """Each layer's part of their kernel, by their work."""
    weights = {name: work.by_layer[name][precisions[name]] for name in sorted(owners)}
    total = sum(weights.values())
    return {name: weight / total if total else 1 / len(weights) for name, weight in weights.items()}


def kernels_of_run(path: str, model: ModelFile) -> tuple[KernelTime, ...]:
    """The times of the engine's layers in a run of `model`: a file, or its result in memory.

    Raises:
        UsageError: it is a run of another model, of no engine, or of one that was not executed.
        StoreError: it cannot be read.
    """
    if isinstance(path, InMemory):
        result: CompareResult = path.value
        same = result.model.sha256 == model.sha256
    else:
        with Run(path) as run:
            described, result = run.manifest.get("model"), run.result
        same = isinstance(described, Mapping) and described.get("digest") == model.digest
    what = ""
    if not same:
        what = f"is of another model ({result.model.path})"
    elif result.engine is None:
        what = "was made without an engine"
    elif result.engine.execution is None:
        why = result.engine.not_executed_because or "no reason is given"
        what = f"has an engine that was not executed: {why}"
    elif result.engine.execution.kernels:
        return result.engine.execution.kernels
    raise UsageError(
        f"{option('profile')}: {path} {what or 'holds no times of layers'}",
        _HOW if same else "Give a run of the same model, or the JSON of trtexec --exportProfile.",
        code="QD-USAGE-PROFILE-RUN",
    )
