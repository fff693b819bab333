"""Times of layers and of whole executions, and the GPU: of trtexec's files and log, and of trex."""

from __future__ import annotations

import math
import re
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from qdebug.engine_info.files.layer_info import damaged
from qdebug.engine_info.files.node_names import nodes_in_name, without_profile
from qdebug.engine_info.layers import EngineInfo, EngineLayer, InfoSource, Role
from qdebug.engine_info.measurements import Device, ExecutionTimes, LayerTime
from qdebug.errors import UsageError
from qdebug.wording import option

TIMES_ONLY = (
    "A profile holds names and times only: inspect the layer information of the same engine, and "
    "give this file as its profile."
)
_MOST = 1e300
"""Larger whole numbers are no floats."""


# ---- layers


def is_profile(document: object) -> bool:
    """Whether a JSON document is a profile (`trtexec --exportProfile`)."""
    if not isinstance(document, list) or not document:
        return False
    entries = document[_is_count(document[0]) :]
    return all(isinstance(e, Mapping) and "name" in e for e in entries)


def read_profile(document: Any, name: str) -> tuple[LayerTime, ...]:
    """The times in a profile: averages, or totals divided by the number of runs.

    Args:
        document: the parsed JSON.
        name: of the file, for errors.

    Raises:
        UsageError: the document is something else, holds no layer, or a time is not a number.
    """
    if not is_profile(document):
        raise UsageError(
            f"{name} is not a profile of an engine's layers",
            "trtexec --exportProfile=FILE --dumpProfile --separateProfileRun writes it.",
            code="QD-USAGE-ENGINE-FILE",
        )
    counted = _is_count(document[0])
    runs = max(document[0]["count"], 1) if counted else 1
    times = []
    for entry in document[counted:]:
        value: Any = entry.get("averageMs")
        if value is None and _is_number(entry.get("timeMs")):
            value = entry["timeMs"] / runs
        if not _is_number(value) or value < 0:
            damaged(f"{name}: layer '{entry['name']}' has no time (averageMs or timeMs)")
        times.append(LayerTime(str(entry["name"]), float(value)))
    if not times:
        damaged(f"{name}: the profile holds no layers")
    return tuple(times)


def times_in_table(messages: Sequence[str]) -> tuple[LayerTime, ...]:
    """The average times in the last table that trtexec's --dumpProfile printed among the messages
    of a log; none where it printed none.

    A row is a name, the total, the average, the median where the table's head names it, and a share
    in percent; from TensorRT 8.6 on the name is last.
    """
    starts = [i for i, line in enumerate(messages) if _TABLE.match(line.strip())]
    figures, last = 0, True
    times: list[LayerTime] = []
    for message in messages[starts[-1] + 1 :] if starts else ():
        row = message.strip().removesuffix("%")
        if re.match(r"Layer\s.*Time|Time ?\(ms\)|Time\s", row):
            figures, last = 3 + ("Median" in row), not row.startswith("Layer")
            continue
        cells = row.split(None, figures) if last else row.rsplit(None, figures)
        name = cells.pop(-1 if last else 0) if cells else ""
        if len(cells) != figures or not all(map(_FIGURE.fullmatch, cells)) or name == "Total":
            break
        times.append(LayerTime(name, float(cells[1])))
    return tuple(times)


_TABLE = re.compile(r"=== Profile \(\d+ iterations? \) ===")
_FIGURE = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def with_times(
    info: EngineInfo, times: Sequence[LayerTime], name: str, setting: str = "profile"
) -> EngineInfo:
    """`info` with the time of every layer that the profile names; layers of one name in turn.

    Args:
        name: of the profile. setting: that gave it, for errors.

    Raises:
        UsageError: the profile names few of the layers that take time: it is of another engine.
    """
    waiting: dict[str, deque[float]] = defaultdict(deque)
    for time in times:
        waiting[without_profile(time.name)].append(time.ms)
    layers = tuple(
        replace(x, time_ms=waiting[x.name].popleft()) if waiting.get(x.name) else x
        for x in info.layers
    )
    working = [x for x in layers if x.role is not Role.CONTROL and not x.takes_no_time]
    matched = sum(x.time_ms is not None for x in working)
    left = sum(map(len, waiting.values()))
    if matched < len(working) / 2 or left > len(times) / 2:
        absent = next((t.name for t in times if waiting[without_profile(t.name)]), times[0].name)
        raise UsageError(
            f"{option(setting)}: {name} has times of only {matched} of the engine's {len(working)} "
            f"layers; {left} of its {len(times)} times are of others, for example '{absent}'",
            "Export profile and layer information from one engine.",
            code="QD-USAGE-PROFILE-OTHER-ENGINE",
        )
    note = f"{left} of {len(times)} times in {name} belong to no layer of the engine."
    return replace(info, layers=layers, notes=(*info.notes, note) if left else info.notes)


def info_of_profile(times: Sequence[LayerTime]) -> EngineInfo:
    """An engine of which only names and times are known."""
    layers = tuple(
        EngineLayer(t.name, onnx_nodes=nodes_in_name(t.name), named_only=True, time_ms=t.ms)
        for t in times
    )
    return EngineInfo(layers, InfoSource.PROFILE, detailed=False, notes=(TIMES_ONLY,))


# ---- executions and the GPU


@dataclass(frozen=True)
class Measured:
    """What a file tells of whole executions, and of the GPU."""

    executions: ExecutionTimes | None = None
    device: Device | None = None


def measured_in_log(messages: Sequence[str]) -> Measured:
    """What trtexec printed into a log, given its lines without what comes before their messages."""
    summary = _section(messages, "Performance summary")
    device = _section(messages, "Device Information")
    return Measured(_executions(summary), _device(device) if device else None)


def is_times(document: object) -> bool:
    """Whether a JSON document is a list of executions (`trtexec --exportTimes`)."""
    first = document[0] if isinstance(document, list) and document else None
    return isinstance(first, Mapping) and ("computeMs" in first or "latencyMs" in first)


def is_metadata(document: object) -> bool:
    """Whether a JSON document is metadata that trex (NVIDIA's engine explorer) writes beside an
    engine: of its GPU (`*.metadata.json`), or with what trtexec printed (`*.profile.metadata.json`,
    `*.build.metadata.json`)."""
    found = document[0] if isinstance(document, list) and document else document
    return isinstance(found, Mapping) and ("ComputeCapability" in found or set(found) >= _SECTIONS)


_SECTIONS = {"device_information"}


def read_measured(document: Any, name: str) -> Measured:
    """What such a JSON tells; nothing where it is of another kind.

    Args:
        document: the parsed JSON.
        name: of the file, for errors.

    Raises:
        UsageError: a figure is no number.
    """
    if is_times(document):
        medians = (_median(document, key, name) for key in ("computeMs", "latencyMs"))
        return Measured(ExecutionTimes(len(document), *medians))
    if not is_metadata(document):
        return Measured()
    found = document[0] if isinstance(document, list) else document
    if "ComputeCapability" not in found:
        summary, device = found.get("performance_summary"), found["device_information"]
        return Measured(
            _executions(summary) if isinstance(summary, Mapping) else None,
            _device(device) if isinstance(device, Mapping) else None,
        )
    capability = found["ComputeCapability"]
    if not (isinstance(capability, list) and [type(x) for x in capability] == [int, int]):
        damaged(f"{name}: 'ComputeCapability' is {capability!r}, not two whole numbers")
    fields = {
        "Selected Device": found.get("Name", ""),
        "Compute Capability": ".".join(map(str, capability)),
        "SMs": found.get("MULTIPROCESSOR_COUNT"),
        "Compute Clock Rate": (_number(found.get("CLOCK_RATE")) or 0) / 1e6,  # of kHz
        "Memory Clock Rate": (_number(found.get("MEMORY_CLOCK_RATE")) or 0) / 1e6,
        "Memory Bus Width": found.get("GLOBAL_MEMORY_BUS_WIDTH"),
    }
    return Measured(device=_device(fields))


def _section(messages: Sequence[str], title: str) -> Mapping[str, str]:
    """The fields below the last "=== title ===" of a log."""
    starts = [i for i, message in enumerate(messages) if f"=== {title} ===" in message]
    found: dict[str, str] = {}
    for message in messages[starts[-1] + 1 :] if starts else ():
        key, colon, value = message.partition(":")
        if not colon or "===" in message:
            break
        found[key.strip().removeprefix("Application ")] = value.strip()
    return found


def _executions(fields: Mapping[str, Any]) -> ExecutionTimes | None:
    rate, seconds = _number(fields.get("Throughput")), _number(fields.get("Total Host Walltime"))
    if rate is None or seconds is None:
        return None
    return ExecutionTimes(
        round(rate * seconds),
        compute_ms=_statistic(fields, "GPU Compute Time", "median"),
        latency_ms=_statistic(fields, "Latency", "median"),
        compute_p99_ms=_statistic(fields, "GPU Compute Time", "percentile(99%)"),
        enqueue_ms=_statistic(fields, "Enqueue Time", "median"),
        throughput=rate,
    )


_STATISTICS = ("min", "max", "mean", "median", "percentile(99%)")
"""In the order of trex's lists."""


def _statistic(fields: Mapping[str, Any], key: str, word: str) -> float | None:
    """Of the "min = 0.8 ms, max = …" in a log, which trex writes as a list."""
    value = fields.get(key)
    if isinstance(value, list):
        return _number(value[_STATISTICS.index(word)]) if len(value) == len(_STATISTICS) else None
    return _number(str(value).partition(f"{word} = ")[2])


def _device(fields: Mapping[str, Any]) -> Device:
    capability = re.match(r"(\d+)\.(\d+)", str(fields.get("Compute Capability")))
    keys = ("SMs", "Compute Clock Rate", "Memory Clock Rate", "Memory Bus Width")
    count, clock, memory, width = (_number(fields.get(key)) or None for key in keys)
    return Device(
        name=str(fields.get("Selected Device", "")),
        compute_capability=(int(capability[1]), int(capability[2])) if capability else None,
        multiprocessors=int(count) if count else None,
        clock_ghz=clock,
        # Two transfers a cycle, of the width of the bus.
        bandwidth_gb_s=round(2 * memory * width / 8, 1) if memory and width else None,
    )


def _number(value: object) -> float | None:
    """The number that a text begins with, or a number itself; None for anything else."""
    found = re.match(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?", str(value))
    number = float(found[0]) if found else math.inf
    return number if number < _MOST else None


def _median(entries: Sequence[Any], key: str, name: str) -> float | None:
    found = [e[key] for e in entries if isinstance(e, Mapping) and key in e]
    if not all(map(_is_number, found)):
        damaged(f"{name}: a '{key}' is not a number")
    return float(median(found)) if found else None


def _is_count(entry: object) -> bool:
    return isinstance(entry, Mapping) and _is_number(entry.get("count")) and "name" not in entry


def _is_number(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and abs(value) < _MOST
