"""Can a TensorRT library that is installed be loaded here, and what can it do?"""

from __future__ import annotations

from qdebug.backends.tensorrt.execute.device import find_device
from qdebug.backends.tensorrt.library import (
    LibraryKind,
    abilities,
    installed_version,
    parse_version,
)
from qdebug.backends.tensorrt.process import process_of
from qdebug.errors import QdebugError


def probe_rtx(version: str) -> tuple[bool, str, str]:
    """What TensorRT for RTX can do here; see BackendSpec.probe."""
    return _probe(LibraryKind.RTX, version)


def probe_classic(version: str) -> tuple[bool, str, str]:
    """What TensorRT 10 or 11 can do here; see BackendSpec.probe."""
    return _probe(LibraryKind.CLASSIC, version)


def _probe(kind: LibraryKind, version: str) -> tuple[bool, str, str]:
    problem, hint = load_problem(kind)
    if problem:
        return False, problem, hint
    return True, *abilities(kind, parse_version(version), find_device())


def load_problem(kind: LibraryKind) -> tuple[str, str]:
    """Why a library does not load, and the next step; ("", "") when it does."""
    try:
        process_of(kind).ask("function", installed_version, (kind,), doing="loaded the library")
    except QdebugError as error:
        return error.message, error.hint
    return "", ""
