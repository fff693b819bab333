"""Every error has a code of its own, and the reference lists every code with cause and cure."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from qdebug import errors

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "qdebug"
REFERENCE = ROOT / "docs" / "reference" / "errors.md"
FILES = sorted(PACKAGE.rglob("*.py"))
CODE = re.compile(r"QD(-[A-Z0-9]+){2,}")
CLASSES = {
    name: cls
    for name, cls in vars(errors).items()
    if isinstance(cls, type) and issubclass(cls, errors.QdebugError)
}
FAMILIES = {
    cls.family: name
    for name, cls in CLASSES.items()
    if name != "QdebugError" and "family" in vars(cls)
}


def _name(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


@cache
def _nodes(file: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


def _in_sources() -> Iterator[str]:
    for file in FILES:
        for node in _nodes(file):
            if isinstance(node, ast.Constant) and CODE.fullmatch(str(node.value)):
                yield str(node.value)


def _rows() -> Iterator[tuple[str, str, list[str]]]:
    """(family the row stands under, code, the other cells) of every row of the reference."""
    family = ""
    for line in REFERENCE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            family = line[3:].strip()
        cells = [c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]]
        code = cells[0].strip("`") if cells else ""
        if CODE.fullmatch(code):
            yield family, code, cells[1:]


def test_the_reference_lists_the_codes_of_the_sources() -> None:
    listed = {code for _, code, _ in _rows()}
    assert set(_in_sources()) == listed


def test_each_code_is_listed_once_in_its_family_with_cause_and_cure() -> None:
    assert {code: n for code, n in Counter(c for _, c, _ in _rows()).items() if n > 1} == {}
    assert list(_rows()) == sorted(_rows(), key=lambda row: (list(FAMILIES).index(row[0]), row[1]))
    for family, code, cells in _rows():
        assert code.startswith(f"{family}-"), f"{code} stands under {family}"
        assert len(cells) == 2, code
        assert all(cells), code


def test_the_reference_has_each_family_with_its_class_and_exit_code() -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    for family, name in FAMILIES.items():
        assert f"\n## {family}\n" in text
        assert f"| `{family}` | `{name}` | {CLASSES[name].exit_code} |" in text


def test_every_error_says_its_code() -> None:
    for file, node in ((f, n) for f in FILES for n in _nodes(f)):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name in CLASSES:
            given = {k.arg: k.value for k in node.keywords}
            assert "code" in given, f"{_name(file)}:{node.lineno}: {name} without a code"
            code = given["code"]
            if isinstance(code, ast.Constant):
                family = CLASSES[name].family
                assert str(code.value).startswith(f"{family}-"), f"{_name(file)}:{node.lineno}"
