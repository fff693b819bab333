"""Damaged files of every kind, from a fixed seed: a result or one clear message."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[1] / "scripts" / "hardening" / "fuzz.py"
CASES = 100


@pytest.mark.parametrize("first", range(0, 4 * CASES, CASES))
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
