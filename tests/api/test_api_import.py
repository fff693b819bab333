"""What `import qdebug` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest
from patience import PATIENCE_S

import qdebug

HEAVY = ("onnxruntime", "onnx", "numpy", "pydantic", "h5py", "rich", "cyclopts", "yaml")

COMMANDS = (
    *("compare", "calibrate", "ranges", "bisect", "inspect", "sweep", "report", "view", "export"),
    "doctor",
)


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )


def test_importing_takes_no_time_and_no_library() -> None:
    """Of the processor, whatever else the machine does."""
    code = (
        "import sys, time; began = time.process_time(); import qdebug; "
        f"print(time.process_time() - began, [m for m in {HEAVY!r} if m in sys.modules])"
    )
    seconds, heavy = _python("-c", code).stdout.split(maxsplit=1)
    assert heavy.strip() == "[]"
    assert float(seconds) < 0.1


@pytest.mark.parametrize("name", qdebug.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(qdebug, name).__doc__
    assert name in dir(qdebug)


def test_commands_are_functions_whatever_was_imported_before() -> None:
    code = (
        "import importlib, pkgutil, qdebug\n"
        "for module in pkgutil.iter_modules(qdebug.__path__, 'qdebug.'):\n"
        "    importlib.import_module(module.name)\n"
        f"print(all(callable(getattr(qdebug, name)) for name in {COMMANDS!r}))"
    )
    assert _python("-c", code).stdout.strip() == "True"


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'comparee'"):
        qdebug.comparee  # noqa: B018
