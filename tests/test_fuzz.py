"""Damaged files of every kind, from a fixed seed: a result or one clear message."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[1] / "scripts" / "hardening" / "fuzz.py"
CASES = 250
"""Each: with two kinds of case for each command and file. `scripts/fuzz` runs thousands."""


@pytest.mark.parametrize("first", range(0, 2 * CASES, CASES))
def test_damaged_files(first: int) -> None:
    arguments = ["--cases", str(CASES), "--first", str(first), "--seed", "0"]
    done = subprocess.run(
        [sys.executable, str(FUZZ), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^all +{CASES}$", done.stdout, re.MULTILINE)
    # Most cases must get past the parser, not all: what fails at once tests nothing else.
    heads, *rows = done.stdout.splitlines()[1:]
    assert {"exit 0", "exit 2"} <= set(re.findall(r"exit \d", heads)), rows


def test_chaos() -> None:
    """The program that kills and starves commands, on one case of each."""
    counts = ["--kills", "1", "--limits", "1", "--only", "export"]
    command = [sys.executable, str(FUZZ.with_name("chaos.py")), *counts]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("3 cases, 0 findings\n")
