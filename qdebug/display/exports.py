"""What the result of a comparison is written as for other tools.

Adding a target takes a function (ExportedRun) -> files by the end of their names, an entry here,
and its name and help in `config/export.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdebug.results.compare import CompareResult


@dataclass(frozen=True)
class ExportedRun:
    """A comparison to write.

    Attributes:
        result: what it found.
        tensors: those that each node of the network computes, by the name of the node; empty where
            the network is not known.
    """

    result: CompareResult
    tensors: Mapping[str, tuple[str, ...]]


_RENDERERS: Mapping[str, str] = {
    "model-explorer": "model_explorer:render",
    "csv": "tables:render_csv",
    "parquet": "tables:render_parquet",
}
"""What renders each target, as "module:function" of this package, imported when it is needed."""


def rendered(target: str, run: ExportedRun) -> Mapping[str, bytes]:
    """The files of one of `config.export.RUN_TARGETS`, by the end of their names."""
    files: Mapping[str, bytes] = resolve_name(f"{__package__}.{_RENDERERS[target]}")(run)
    return files
