"""The layers and the tensors of a comparison as tables."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
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
    return [{n: _scalar(row.get(n)) for n in names if n not in nested} for row in rows]


def _scalar(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def render_csv(result: CompareResult) -> dict[str, bytes]:
    """A file for each table. A value that is not known is empty."""
    return {f".{name}.csv": csv_text(rows).encode() for name, rows in tables(result).items()}


def csv_text(rows: Sequence[Row]) -> str:
    """Rows of the same columns as CSV; "" without any."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def render_parquet(result: CompareResult) -> dict[str, bytes]:
    """A file for each table.

    Raises:
        UsageError: pyarrow is not installed (QD-USAGE-PARQUET).
    """
    arrow, parquet = (
        required(name, "Parquet", code="QD-USAGE-PARQUET")
        for name in ("pyarrow", "pyarrow.parquet")
    )
    found = {}
    for name, rows in tables(result).items():
        file = io.BytesIO()
        parquet.write_table(arrow.Table.from_pylist(rows), file)
        found[f".{name}.parquet"] = file.getvalue()
    return found
