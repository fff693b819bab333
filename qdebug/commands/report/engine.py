"""What a page shows of the files that describe an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qdebug.commands.inspect import inspect
from qdebug.commands.report.sources import Source, of_result
from qdebug.config.inspect import InspectSettings
from qdebug.engine_info.files.opening import engine_file_kind
from qdebug.inmemory import InMemory


def of_engine(file: str, more: Mapping[str, Any], model: str | None) -> Source:
    """What inspect finds in a file.

    Args:
        more: other files of the same engine, by the settings of inspect.

    Raises:
        QdebugError: one of them cannot be read, or is of another engine.
    """
    return of_result(inspect(InspectSettings(file, **more)), model, Path(file).name)


def joined(files: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
    """The files, each with those after it that tell of the same engine: its profile, times and
    GPU. The settings of `inspect` name these."""
    found: list[tuple[str, dict[str, str]]] = []
    for file in files:
        setting = (
            None
            if isinstance(file, InMemory) or Path(file).suffix != ".json"
            else engine_file_kind(Path(file))
        )
        if found and setting is not None and setting not in ("layers", *found[-1][1]):
            found[-1][1][setting] = file
        else:
            found.append((file, {}))
    return found
