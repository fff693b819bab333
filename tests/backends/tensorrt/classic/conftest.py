"""NVIDIA's real Python bindings of TensorRT 10 and 11, over stub shared objects made on the spot.

They give the true classes, enums and signatures to check our code against. They cannot build an
engine: TensorRT's own library is not on PyPI.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

VERSIONS = ("10.16.1.11", "11.4.0.106")
_ENTRY_POINTS = (
    "createInferBuilder_INTERNAL",
    "createInferRefitter_INTERNAL",
    "createInferRuntime_INTERNAL",
    "getPluginRegistry",
    "getBuilderPluginRegistry",
    "createNvOnnxParser_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL",
    "getNvOnnxParserVersion",
    "initLibNvInferPlugins",
)
_LIBRARIES = ("libnvinfer", "libnvonnxparser", "libnvinfer_plugin")
_FRONTEND = (
    "from tensorrt_bindings import *\nfrom tensorrt_bindings import __version__\n"  # NVIDIA's does
)

Run = Callable[..., str]
Environment = Callable[..., dict[str, str]]


@pytest.fixture(scope="session")
def bindings(pytestconfig: pytest.Config) -> Callable[[str], Path]:
    """`bindings(version)`: a folder to put on PYTHONPATH; installed once per checkout."""
    if sys.platform != "linux":
        pytest.skip("the stub shared objects are made for Linux")
    kept = pytestconfig.cache.mkdir("tensorrt-bindings")

    @cache
    def install(version: str) -> Path:
        folder = kept / f"{version}-py{sys.version_info.major}{sys.version_info.minor}"
        if folder.exists():
            return folder
        with tempfile.TemporaryDirectory(dir=kept) as scratch:
            target = Path(scratch) / "site"
            wanted = f"tensorrt-cu13-bindings=={version}"
            options = ["--quiet", "--no-deps", "--no-compile", "--target", str(target)]
            command = [sys.executable, "-m", "pip", "install", *options, wanted]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"{wanted} cannot be installed: {done.stderr.strip()[-200:]}")
            (target / "tensorrt").mkdir()
            (target / "tensorrt" / "__init__.py").write_text(_FRONTEND)
            try:
                target.rename(folder)
            except OSError:  # another process was first
                assert folder.exists()
        return folder

    return install


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`stubs(version)`: a folder with shared objects that hold the entry points and do nothing."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("the stub shared objects need a C compiler (cc)")

    @cache
    def compile_stubs(version: str) -> Path:
        folder = tmp_path_factory.mktemp("stubs")
        major, minor, patch, _ = version.split(".")
        source = "".join(f"void* {name}(void) {{ return 0; }}\n" for name in _ENTRY_POINTS)
        for part, value in (("Major", major), ("Minor", minor), ("Patch", patch)):
            source += f"int getInferLib{part}Version(void) {{ return {value}; }}\n"
        for library in _LIBRARIES:
            name = f"{library}.so.{major}"
            linked = ["-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(folder / name)]
            subprocess.run([compiler, *linked, "-x", "c", "-"], input=source, text=True, check=True)
        return folder

    return compile_stubs


@pytest.fixture(scope="session")
def environment(bindings: Callable[[str], Path], stubs: Callable[[str], Path]) -> Environment:
    """`environment(version, over=None)`: of a process in which `import tensorrt` gives the bindings
    of that version, over stubs of version `over`; None for the same version, "" for no stubs."""
    here = Path(__file__).parent

    def of(version: str, over: str | None = None) -> dict[str, str]:
        path = [str(here), str(bindings(version)), str(here.parents[3])]
        found = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
        return found if over == "" else found | {"LD_LIBRARY_PATH": str(stubs(over or version))}

    return of


@pytest.fixture(scope="session")
def classic(environment: Environment) -> Run:
    """`classic(version, code, over=None)`: what `code` prints in a process of that environment."""

    def run(version: str, code: str, over: str | None = None) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=environment(version, over),
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
