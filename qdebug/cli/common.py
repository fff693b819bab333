"""What subcommands share: consoles, verbosity, writing JSON."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from qdebug.errors import UsageError


def output_console() -> Console:
    """Where results go. Off a terminal nothing is wrapped or coloured."""
    terminal = sys.stdout.isatty()
    return Console(file=sys.stdout, highlight=False, width=None if terminal else 4096)


def error_console() -> Console:
    """Where progress goes."""
    return Console(file=sys.stderr, highlight=False)


def set_verbosity(level: int) -> None:
    """0 shows warnings, 1 (-v) what is done, 2 (-vv) everything and tracebacks."""
    levels = [logging.WARNING, logging.INFO, logging.DEBUG]
    logging.basicConfig(
        level=levels[min(level, 2)], format="qdebug: %(levelname)s: %(message)s", force=True
    )


def write_json(data: dict[str, Any], target: str) -> None:
    """Write `data` to a file, or to the standard output for "-".

    Raises:
        UsageError: the file cannot be written.
    """
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    if target == "-":
        print(text)
        return
    try:
        Path(target).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--json: {target} cannot be written: {error.strerror}") from error
