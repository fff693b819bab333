"""The sizes of packages in docs/contributing.md hold: none has more statements than its line."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
LINE = re.compile(r"^\| `(?P<box>[\w/]+)` \|(?P<most>[ \d]+)\|", re.MULTILINE)


def statements(source: str) -> int:
    """How many statements a module has; docstrings do not count."""
    return sum(
        isinstance(node, ast.stmt)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in ast.walk(ast.parse(source))
    )


def sizes() -> Counter[str]:
    """The statements of each folder of qdebug/, of the modules beside them, and of all."""
    found: Counter[str] = Counter()
    for file in (REPOSITORY / "qdebug").rglob("*.py"):
        parts = file.relative_to(REPOSITORY / "qdebug").parts
        counted = statements(file.read_text(encoding="utf-8"))
        found[f"{parts[0]}/" if len(parts) > 1 else "root"] += counted
        found["all"] += counted
    return found


def limits() -> dict[str, int]:
    """The largest number of statements of each, as the table says."""
    page = (REPOSITORY / "docs" / "contributing.md").read_text(encoding="utf-8")
    table = page.partition("\n## Sizes\n")[2].partition("\n## ")[0]
    return {line["box"]: int(line["most"].replace(" ", "")) for line in LINE.finditer(table)}


def test_no_package_has_more_statements_than_its_line() -> None:
    allowed = limits()
    assert "all" in allowed
    over = [
        f"{box}: {size} statements, at most {allowed.get(box, 'no line')}"
        for box, size in sizes().items()
        if size > allowed.get(box, -1)
    ]
    assert not over, "\n".join(["docs/contributing.md, Sizes:", *over])


def test_every_line_is_of_a_package() -> None:
    assert set(limits()) <= set(sizes())
