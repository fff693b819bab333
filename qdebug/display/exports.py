"""What the result of a comparison is written as for other tools.

Adding a target takes a function (CompareResult) -> files by the end of their names, an entry here,
and its name and help in `config/export.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdebug.results.compare import CompareResult

_RENDERERS: Mapping[str, str] = {"csv": "tables:render_csv", "parquet": "tables:render_parquet"}
"""What renders each target, as "module:function" of this package, imported when it is needed."""


def rendered(target: str, result: CompareResult) -> Mapping[str, bytes]:
    """The files of one of `config.export.RUN_TARGETS`, by the end of their names."""
    files: Mapping[str, bytes] = resolve_name(f"{__package__}.{_RENDERERS[target]}")(result)
    return files
