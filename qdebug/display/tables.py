"""The layers and the tensors of a comparison as tables."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qdebug.errors import required
from qdebug.results.compare import CompareResult

Row = Mapping[str, Any]


def tables(result: CompareResult) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table, all with the same columns; nested values are under dotted names,
    lists are JSON."""
    tensors = [{"name": t.name, **vars(t.metrics)} for t in result.tensors]
    return {"layers": _even(result.rows()), "tensors": _even(tensors)}


def _even(rows: Sequence[Row]) -> list[dict[str, Any]]:
    # A record that is null in one row and not in another: its own columns stand for it.
    names = list(dict.fromkeys(name for row in rows for name in row))
    nested = {name for name in names if any(other.startswith(f"{name}.") for other in names)}
    return [
        {
            name: json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
            for name in names
            if name not in nested
            for value in [row.get(name)]
        }
        for row in rows
    ]


def csv_text(rows: Sequence[Row]) -> str:
    """Rows of the same columns as CSV, where a value that is not known is empty; "" without
    any."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def _as_parquet(rows: Sequence[Row]) -> bytes:
    """The bytes of a file.

    Raises:
        UsageError: pyarrow is not installed (QD-USAGE-PARQUET).
    """
    arrow, parquet = (
        required(name, "Parquet", code="QD-USAGE-PARQUET")
        for name in ("pyarrow", "pyarrow.parquet")
    )
    file = io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist(rows), file)
    return file.getvalue()


_WRITERS: Mapping[str, Callable[[Sequence[Row]], bytes]] = {
    "csv": lambda rows: csv_text(rows).encode(),
    "parquet": _as_parquet,
}
"""What writes a table, by the targets of `config.report.RUN_TARGETS`."""


def rendered(target: str, result: CompareResult) -> dict[str, bytes]:
    """A file for each table, by the end of its name.

    Raises:
        UsageError: a package that `target` needs is not installed.
    """
    write = _WRITERS[target]
    return {f".{name}.{target}": write(rows) for name, rows in tables(result).items()}
