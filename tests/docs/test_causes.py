"""The reference of causes lists the labels of the sources, each with what to do."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache

from documents import REPOSITORY

from qdebug.analyse.causes.engine import ENGINE_LABELS

PACKAGE = REPOSITORY / "qdebug"
PAGE = REPOSITORY / "docs" / "reference" / "causes.md"


@cache
def _labels() -> frozenset[str]:
    return frozenset(_all_labels())


def _all_labels() -> Iterator[str]:
    """The first argument of every `Cause(…)` of the sources."""
    for file in PACKAGE.rglob("*.py"):
        if "Cause(" not in (text := file.read_text("utf-8")):
            continue
        module = ".".join(["qdebug", *file.relative_to(PACKAGE).with_suffix("").parts])
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "Cause":
                continue
            label = node.args[0]
            if isinstance(label, ast.Constant):
                yield str(label.value)
            elif isinstance(label, ast.Name):
                yield str(getattr(importlib.import_module(module), label.id))
            else:  # what an attribution found: one of the engine's labels
                assert ast.unparse(label) == "here.label", f"{file.name}:{node.lineno}"
                yield from ENGINE_LABELS


def test_the_reference_lists_the_labels_of_the_sources() -> None:
    listed = re.findall(r"^### `([\w-]+)`$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == _labels()


def test_each_label_has_what_is_measured_and_what_to_do() -> None:
    sections = re.split(r"^##+ .*$", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    of_labels = [s for s in sections if "**Measured:**" in s or "**What to do:**" in s]
    assert len(of_labels) == len(_labels())
    for section in of_labels:
        assert "**Measured:**" in section
        assert "**What to do:**" in section
