"""What the result of a comparison is written as for other tools: the registry of targets, which
imports nothing heavy.

Adding a target takes a function (ExportedRun) -> files by the end of their names, and one entry
here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdebug.measure.result import CompareResult


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


@dataclass(frozen=True)
class RunTarget:
    """A form to write a comparison in.

    Attributes:
        help: what is written, in one line.
        renderer: the function that renders it, as "module:function", imported when it is needed.
    """

    help: str
    renderer: str

    def render(self, run: ExportedRun) -> Mapping[str, bytes]:
        """The files, by the end of their names."""
        rendered: Mapping[str, bytes] = resolve_name(f"{__package__}.{self.renderer}")(run)
        return rendered


RUN_TARGETS: Mapping[str, RunTarget] = {
    "model-explorer": RunTarget(
        "the figures of a run by node, for Model Explorer", "model_explorer:render"
    ),
    "csv": RunTarget("tables of the layers and tensors of a run", "tables:render_csv"),
    "parquet": RunTarget("the same as Parquet; needs pyarrow", "tables:render_parquet"),
}
"""The targets by name, in the order in which they are shown."""
