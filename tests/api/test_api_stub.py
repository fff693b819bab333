"""The stub that editors and type checkers read has every name and keyword there is."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import qdebug
from qdebug.config.commands import COMMANDS
from qdebug.config.option import settings_of

ROOT = Path(__file__).parents[2]
STUB = ROOT / "qdebug" / "__init__.pyi"


@cache
def _functions() -> dict[str, ast.FunctionDef]:
    """The functions of the stub by name, each in its form with keywords."""
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    found: dict[str, ast.FunctionDef] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, node)
    return found


def _parameters(name: str) -> set[str]:
    arguments = _functions()[name].args
    return {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


def test_the_stub_is_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "make_stub.py", "--check"], check=False
    )
    assert done.returncode == 0, "run scripts/make_stub.py"


def test_the_stub_has_every_public_name() -> None:
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    names = set(_functions())
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("qdebug"):
            names |= {alias.asname or alias.name for alias in node.names}
    assert names == set(qdebug.__all__)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_settings_are_its_keywords(name: str) -> None:
    declared = {setting.name for setting in settings_of(COMMANDS[name].settings)}
    assert _parameters(name) - {"progress"} == declared
