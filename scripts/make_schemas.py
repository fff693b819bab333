#!/usr/bin/env python
"""Write the JSON Schemas of all results to docs/reference/schemas, or check that they are current.

scripts/make_schemas.py            writes them
scripts/make_schemas.py --check    exits 1 when a file is missing or differs
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import qdebug
from qdebug.result import Result, json_schema

FOLDER = Path(__file__).parents[1] / "docs" / "reference" / "schemas"
RESULTS: tuple[type[Result], ...] = (
    qdebug.CompareResult,
    qdebug.CalibrateResult,
    qdebug.RangesResult,
    qdebug.BisectResult,
    qdebug.RepairResult,
    qdebug.InspectResult,
    qdebug.SweepResult,
    qdebug.DoctorResult,
    qdebug.ReportResult,
    qdebug.CheckResult,
    qdebug.InitResult,
    qdebug.DiffResult,
    qdebug.ExportResult,
)


def schemas() -> dict[Path, str]:
    """The text of each file."""
    return {
        FOLDER / f"{result.SCHEMA.replace('/', '-')}.json": json.dumps(
            json_schema(result), indent=2, ensure_ascii=False
        )
        + "\n"
        for result in RESULTS
    }


def main(arguments: list[str]) -> int:
    """Write or check; the exit code."""
    files = schemas()
    stale = [p for p, text in files.items() if not p.is_file() or p.read_text("utf-8") != text]
    if "--check" in arguments:
        for path in stale:
            print(f"{path} is not current: run scripts/make_schemas.py")
        return 1 if stale else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in stale:
        path.write_text(files[path], "utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
