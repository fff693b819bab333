"""Python code of the user: files are loaded as `python file.py` would, errors show the user's own
line, functions have digests."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from qdebug.errors import QdebugError
from qdebug.wording import option


@dataclass(frozen=True)
class UserCodeProblem:
    """How a problem with the user's code is reported.

    Attributes:
        error: the class of the error; `code` is its code.
        setting: that named the code; "" where the caller adds it.
    """

    error: type[QdebugError]
    code: str
    setting: str = ""

    def __call__(self, message: str, hint: str = "") -> QdebugError:
        """The error."""
        where = f"{option(self.setting)}: " if self.setting else ""
        return self.error(f"{where}{message}", hint, code=self.code)


def load_file(path: Path, problem: UserCodeProblem) -> ModuleType:
    """The module in a .py file. It imports others from its folder, as `python file.py` does.

    Raises:
        QdebugError: `problem`: there is no such file, or it raises while it is loaded.
    """
    name = f"qdebug_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise problem(f"{path}: no such file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses in the file look themselves up there
    try:
        with _importing_from(path.resolve().parent):
            spec.loader.exec_module(module)
    except Exception as error:  # the user's file may raise anything
        message = f"{path} cannot be loaded: {last_line(error)}"
        raise problem(message, raising_line(error, path)) from error
    return module


def load_module(name: str) -> ModuleType:
    """A module that the user names: in the current folder, or an installed one.

    Raises:
        ModuleNotFoundError: there is none.
        Exception: whatever else a module raises while it is imported.
    """
    with _importing_from(Path.cwd()):
        return importlib.import_module(name)


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """Within, modules are looked for in a folder first, as Python does for a script; afterwards
    last, for what the user's code imports while it runs."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def function_of(
    module: ModuleType, name: str, spec: str, problem: UserCodeProblem
) -> Callable[..., Any]:
    """The function `name` of a module, which the user calls `spec`.

    Raises:
        QdebugError: `problem`: there is none.
    """
    called: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(called):
        raise problem(
            f"'{spec}': there is no function '{name}'",
            f"Define `def {name}(…)` there, or name another one: file.py:function.",
        )
    return called


def name_of(function: Callable[..., Any]) -> str:
    """What a function in memory is called in messages and tables."""
    name = getattr(function, "__name__", type(function).__name__)
    return "lambda" if name == "<lambda>" else str(name)


def last_line(error: BaseException) -> str:
    """The last line of an exception's traceback."""
    return traceback.format_exception_only(error)[-1].strip()


def raising_line(error: BaseException, file: Path | None) -> str:
    """The line of code that raised: of the user's file if it had a part in it."""
    if isinstance(error, SyntaxError):
        if error.lineno is None:  # no line is at fault, as where the file holds a zero byte
            return "Save it as Python source, in UTF-8."
        code = (error.text or "").strip()
        return f"In {Path(error.filename or '').name}, line {error.lineno}: {code}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if file and Path(f.filename) == file.absolute()]
    last = (own or frames)[-1]
    return f"In {Path(last.filename).name}, line {last.lineno}: {last.line}"


def digest_of(function: Callable[..., Any]) -> str | None:
    """SHA-256 over what decides the result of a function in memory: its code, its defaults, and
    the variables outside of it that it names. Of installed packages the version counts. None where
    there is no such digest, because the function uses an object that is not plain data."""
    found = hashlib.sha256()
    try:
        _add(found, function, set())
    except _NotPlainError:
        return None
    return found.hexdigest()


class _NotPlainError(Exception):
    """The content of an object cannot be identified."""


_PLAIN = (str, bytes, int, float, complex, bool, type(None), type(Ellipsis))


def _add(found: hashlib._Hash, value: Any, seen: set[int]) -> None:
    """Adds a value to a digest; `seen` are the functions in it so far."""
    kind = type(value)
    found.update(f"{kind.__module__}.{kind.__qualname__};".encode())
    if kind in _PLAIN:
        found.update(repr(value).encode())
    elif kind in (set, frozenset):
        found.update(repr(sorted(value, key=repr)).encode())
    elif kind in (tuple, list, dict):
        found.update(f"{len(value)}:".encode())
        for item in value.items() if kind is dict else value:
            _add(found, item, seen)
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        found.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    else:
        _add_code(found, value, seen)


def _add_code(found: hashlib._Hash, value: Any, seen: set[int]) -> None:
    """Adds a function, or what belongs to one.

    Raises:
        _NotPlainError: what it holds cannot be told.
    """
    if isinstance(value, CodeType):
        _add(found, (value.co_code, value.co_names, value.co_varnames, value.co_consts), seen)
    elif isinstance(value, ModuleType):
        found.update(_version(value).encode())
    elif (module := _defined_in(value)) is not None and _is_installed(module):
        found.update(f"{value.__qualname__} of {_version(module)}".encode())
    elif isinstance(value, FunctionType):
        if id(value) not in seen:
            seen.add(id(value))
            _add(found, (value.__code__, value.__defaults__, value.__kwdefaults__), seen)
            _add(found, list(_outside(value)), seen)
    elif isinstance(value, functools.partial):
        _add(found, (value.func, value.args, value.keywords), seen)
    else:
        raise _NotPlainError


def _outside(function: FunctionType) -> Iterator[object]:
    """The variables outside of a function that it, or a function in it, names.

    Raises:
        _NotPlainError: what it holds cannot be told.
    """
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it has no value yet
            raise _NotPlainError from None
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _defined_in(value: Any) -> ModuleType | None:
    """The module that has `value`, a function or a class, under its name."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    name = getattr(value, "__qualname__", "")
    return module if module is not None and getattr(module, name, None) is value else None


def _is_installed(module: ModuleType) -> bool:
    """Whether it is Python's own or an installed package's, so that its version says its code."""
    file = getattr(module, "__file__", None)
    if file is None:
        return module.__name__ in sys.builtin_module_names
    return any(Path(file).is_relative_to(folder) for folder in _INSTALLED)


_INSTALLED = [sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib")]


def _version(module: ModuleType) -> str:
    """What identifies the code of a module: its version, or its text where it is the user's own.

    Raises:
        _NotPlainError: what it holds cannot be told.
    """
    if _is_installed(module):
        package = sys.modules.get(module.__name__.split(".")[0])
        return f"{module.__name__} {getattr(package, '__version__', sys.version)}"
    try:
        text = Path(module.__file__ or "").read_bytes()
    except OSError:
        raise _NotPlainError from None
    return f"{module.__name__} {hashlib.sha256(text).hexdigest()}"
