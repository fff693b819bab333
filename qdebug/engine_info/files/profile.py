"""Times of layers from `trtexec --exportProfile`."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qdebug.engine_info.files.metadata import nodes_in_name
from qdebug.engine_info.files.optimization_profiles import without_mark
from qdebug.engine_info.layers import EngineInfo, EngineLayer, InfoSource, Role
from qdebug.errors import UsageError
from qdebug.wording import option

TIMES_ONLY = (
    "A profile holds names and times only: inspect the layer information of the same engine, and "
    "give this file as its profile."
)


@dataclass(frozen=True)
class LayerTime:
    """The time of one execution of the layer `name`, averaged over the profile's runs."""

    name: str
    ms: float


def is_profile(document: object) -> bool:
    """Whether a JSON document is a profile."""
    if not isinstance(document, list) or not document:
        return False
    entries = document[1:] if _is_count(document[0]) else document
    return all(isinstance(e, Mapping) and "name" in e for e in entries) and (
        bool(entries) or _is_count(document[0])
    )


def read_profile(document: Sequence[Any], name: str) -> tuple[LayerTime, ...]:
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
    runs = document[0]["count"] if counted else 1
    times = []
    for entry in document[1:] if counted else document:
        value = _average(entry, max(runs, 1))
        if value is None:
            raise UsageError(
                f"{name}: layer '{entry['name']}' has no time (averageMs or timeMs)",
                code="QD-USAGE-ENGINE-FILE-DAMAGED",
            )
        times.append(LayerTime(str(entry["name"]), value))
    if not times:
        raise UsageError(
            f"{name}: the profile holds no layers", code="QD-USAGE-ENGINE-FILE-DAMAGED"
        )
    return tuple(times)


def times_in_table(lines: Sequence[str]) -> tuple[LayerTime, ...]:
    """The times in the last table that trtexec's --dumpProfile printed among `lines`, without what
    comes before their messages; none where it printed none."""
    starts = [i for i, line in enumerate(lines) if _TABLE.match(line.strip())]
    if not starts:
        return ()
    times: list[LayerTime] = []
    for line in lines[starts[-1] + 1 :]:
        text = line.strip()
        if re.match(r"(?:Layer\s|Time ?\(ms\))", text):
            continue
        found = _NAME_FIRST.match(text) or _NAME_LAST.match(text)
        if not found or found["name"].strip() == "Total":
            break
        times.append(LayerTime(found["name"].strip(), float(found["ms"])))
    return tuple(times)


# "=== Profile (1105 iterations ) ===": each row is a name, the total, the average, the median where
# it is told, and a share in percent; from TensorRT 8.6 on the name is last.
_TABLE = re.compile(r"=== Profile \(\d+ iterations? \) ===")
_FIGURE = r"\d+(?:\.\d+)?(?:e[-+]?\d+)?"
_NAME_FIRST = re.compile(
    rf"(?P<name>.*\S)\s+{_FIGURE}\s+(?P<ms>{_FIGURE})\s+(?:{_FIGURE}\s+)?{_FIGURE}\s*%?$"
)
_NAME_LAST = re.compile(
    rf"{_FIGURE}\s+(?P<ms>{_FIGURE})\s+(?:{_FIGURE}\s+)?{_FIGURE}\s+(?P<name>\S.*)$"
)


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
        waiting[without_mark(time.name)].append(time.ms)
    layers = []
    for layer in info.layers:
        queue = waiting.get(layer.name)
        layers.append(replace(layer, time_ms=queue.popleft()) if queue else layer)
    working = [x for x in layers if x.role is not Role.CONTROL and not x.takes_no_time]
    matched = sum(x.time_ms is not None for x in working)
    left = sum(map(len, waiting.values()))
    if matched < len(working) / 2 or left > len(times) / 2:
        absent = next((t.name for t in times if waiting[without_mark(t.name)]), times[0].name)
        raise UsageError(
            f"{option(setting)}: {name} has times of only {matched} of the engine's {len(working)} "
            f"layers; {left} of its {len(times)} times are of others, for example '{absent}'",
            "Export profile and layer information from one engine.",
            code="QD-USAGE-PROFILE-OTHER-ENGINE",
        )
    notes = list(info.notes)
    if left:
        notes.append(f"{left} of {len(times)} times in {name} belong to no layer of the engine.")
    return replace(info, layers=tuple(layers), notes=tuple(notes))


def info_of_profile(times: Sequence[LayerTime]) -> EngineInfo:
    """An engine of which only names and times are known."""
    layers = tuple(
        EngineLayer(t.name, onnx_nodes=nodes_in_name(t.name), named_only=True, time_ms=t.ms)
        for t in times
    )
    return EngineInfo(layers, InfoSource.PROFILE, detailed=False, notes=(TIMES_ONLY,))


def _average(entry: Mapping[str, Any], runs: float) -> float | None:
    """The time of a layer in one run; None where the entry does not tell."""
    total, average = entry.get("timeMs"), entry.get("averageMs")
    value: Any = average
    if average is None and _is_number(total):
        value = float(total or 0) / runs
    return float(value) if _is_number(value) and value >= 0 else None


def _is_count(entry: object) -> bool:
    return isinstance(entry, Mapping) and _is_number(entry.get("count")) and "name" not in entry


def _is_number(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and abs(value) < _MOST


_MOST = 1e300
"""Larger whole numbers are no floats."""
