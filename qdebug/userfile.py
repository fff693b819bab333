"""Python files of the user: loaded as `python file.py` would, with the user's line in errors."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from qdebug.errors import QdebugError


def load_file(path: Path, flag: str, error: type[QdebugError]) -> ModuleType:
    """The module in a .py file, whose folder is put on `sys.path`.

    Raises:
        error: there is no such file, or it raises while it is loaded; the message names `flag`, if
            it is known.
    """
    where = f"{flag}: {path}" if flag else str(path)
    name = f"qdebug_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise error(f"{where}: no such file")
    module = importlib.util.module_from_spec(spec)
    directory = str(path.resolve().parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)  # as `python file.py` does
    sys.modules[name] = module  # dataclasses in the file look themselves up there
    try:
        spec.loader.exec_module(module)
    except Exception as problem:  # the user's file may raise anything
        message = f"{where} cannot be loaded: {last_line(problem)}"
        raise error(message, raising_line(problem, path)) from problem
    return module


def function_of(
    module: ModuleType, name: str, spec: str, flag: str, error: type[QdebugError]
) -> Callable[..., Any]:
    """The function `name` of a module.

    Raises:
        error: there is none; the message names `flag`, if it is known.
    """
    called: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(called):
        raise error(
            f"{flag}{': ' * bool(flag)}'{spec}': there is no function '{name}'",
            f"Define `def {name}(…)` there, or name another one: file.py:function.",
        )
    return called


def last_line(error: BaseException) -> str:
    """The last line of an exception's traceback."""
    return traceback.format_exception_only(error)[-1].strip()


def raising_line(error: BaseException, file: Path | None) -> str:
    """The line of code that raised: of the user's file if it had a part in it."""
    if isinstance(error, SyntaxError):
        code = (error.text or "").strip()
        return f"In {Path(error.filename or '').name}, line {error.lineno}: {code}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if file and Path(f.filename) == file.absolute()]
    last = (own or frames)[-1]
    return f"In {Path(last.filename).name}, line {last.lineno}: {last.line}"
