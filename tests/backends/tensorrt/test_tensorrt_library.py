"""Loading a library, and letting Polygraphy use it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
from refusals import refused

from qdebug.backends.tensorrt import library as library_module
from qdebug.backends.tensorrt.library import (
    Library,
    LibraryKind,
    load_library,
    parse_version,
    shared_object_version,
)


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_loaded_library(rtx: Library) -> None:
    assert rtx.rtx and not rtx.implicit and rtx is load_library(LibraryKind.RTX)
    assert ".".join(map(str, rtx.version)) == rtx.module.__version__
    assert rtx.name.startswith("TensorRT for RTX 1.")


def test_the_shared_object_states_its_version(rtx: Library) -> None:
    assert shared_object_version(LibraryKind.RTX, 1) == rtx.version[:3]
    assert shared_object_version(LibraryKind.CLASSIC, 99) is None


def test_versions_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_module, "shared_object_version", lambda kind, major: (1, 6, 1))
    with refused("QD-BACKEND-VERSIONS-DIFFER", "1.7.1.116", "1.6.1"):
        library_module._check_versions(LibraryKind.RTX, (1, 7, 1, 116))


@pytest.mark.parametrize(
    ("text", "version"),
    [("1.7.1.116", (1, 7, 1, 116)), ("10.9", (10, 9)), ("11.0rc1", (11,)), ("", ())],
)
def test_parse_version(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version


def test_a_library_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(library_module.MODULES, LibraryKind.RTX, "no_such_module")
    with refused("QD-USAGE-BACKEND-NOT-INSTALLED", "pip install tensorrt-rtx-cu13"):
        load_library.__wrapped__(LibraryKind.RTX)


def test_a_library_that_is_too_old(monkeypatch: pytest.MonkeyPatch, rtx: Library) -> None:
    monkeypatch.setitem(library_module.OLDEST, LibraryKind.RTX, (99, 0))
    with refused("QD-BACKEND-TOO-OLD", "99.0"):
        load_library.__wrapped__(LibraryKind.RTX)


@pytest.mark.skipif(importlib.util.find_spec("tensorrt_rtx") is None, reason="needs tensorrt_rtx")
@pytest.mark.parametrize("first", ["", "import polygraphy.backend.trt, polygraphy.datatype"])
def test_polygraphy_may_be_imported_before(first: str) -> None:
    """By a user's script, say, and then for the other library."""
    code = f"""
{first}
from qdebug.backends.tensorrt.library import LibraryKind, load_library
library = load_library(LibraryKind.RTX)
from polygraphy.backend.trt import util
from polygraphy.datatype import DataType
assert util.get_trt_logger() is library.logger
assert DataType.from_dtype(library.module.DataType.HALF, "tensorrt").name == "float16"
print(library.version)
"""
    assert run(code, POLYGRAPHY_USE_TENSORRT_RTX="0").startswith("(1, ")


def test_modules_import_without_loading_anything() -> None:
    code = """
import sys, qdebug.backends.tensorrt.build.build
print([m for m in ("tensorrt", "tensorrt_rtx", "polygraphy", "pycuda") if m in sys.modules])
"""
    assert run(code).strip() == "[]"
