#!/usr/bin/env python
"""Write the JSON of `qdebug compare` as a table in Markdown, for the page of a CI job.

python scripts/ci/summary.py result.json summary.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_MOST_LAYERS = 5


def figure(value: Any) -> str:
    """A number for people; a dash where there is none."""
    return f"{value:.4g}" if isinstance(value, int | float) else "–"


def summary(result: dict[str, Any]) -> str:
    """The verdict, both precisions, the conditions, and the worst layers."""
    verdict, metric = result["verdict"], result.get("metric") or {}
    model = Path(result["model"]["path"]).name
    parts = [part for output in result["outputs"] for part in output["parts"] or [output]]
    sqnr = [part["sqnr_db"] for part in parts if part["sqnr_db"] is not None]
    lines = [
        *(f"### qdebug: {model} {'passed' if verdict['passed'] else 'failed'}", ""),
        f"| precision | {metric.get('name', 'metric')} | SQNR of the worst output or part, dB |",
        "|---|---|---|",
        f"| FP32 | {figure(metric.get('reference'))} | |",
        f"| {result['precision'].upper()} | {figure(metric.get('candidate'))} | "
        f"{figure(min(sqnr, default=None))} |",
        "",
    ]
    lines += ["| stage | | |", "|---|---|---|"]
    for stage in result["stages"]:
        state = stage["state"].replace("-", " ")
        shown = f"**{state}**" if state == "failed" else state
        told = ": ".join(filter(None, (stage["told"], stage["next_step"])))
        lines.append(f"| {stage['between']} | {shown} | {told.replace('|', chr(92) + '|')} |")
    lines.append("")
    if verdict["conditions"]:
        lines += ["| condition | found | holds |", "|---|---|---|"]
        for one in verdict["conditions"]:
            holds = "yes" if one["passed"] else "**no**"
            lines.append(f"| `{one['expression']}` | {figure(one['value'])} | {holds} |")
        lines.append("")
    worst = [x for x in result["layers"] if x["precision"] != "fp32"][:_MOST_LAYERS]
    if worst:
        lines += ["| layer | operator | local error, dB | cause |", "|---|---|---|---|"]
        for layer in worst:
            cause = layer["causes"][0]["label"] if layer["causes"] else ""
            local = figure(layer.get("local_sqnr_db"))
            name = layer["name"].replace("|", "\\|")
            lines.append(f"| `{name}` | {layer['op_type']} | {local} | {cause} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:3])
    target.write_text(summary(json.loads(source.read_text(encoding="utf-8"))), encoding="utf-8")
