"""What TensorRT for RTX compiles for a GPU outlives the process; the library is a stand-in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qdebug.backends.tensorrt.execute import runtime_cache
from qdebug.backends.tensorrt.execute.runtime import LoadedEngine
from qdebug.backends.tensorrt.execute.session import TensorRTSession
from qdebug.backends.tensorrt.library import Library
from qdebug.testing.cuda import FakeCuda
from qdebug.testing.tensorrt import fake_maker


class Compiled:
    """A `trt.IRuntimeCache` of the names of kernels."""

    def __init__(self) -> None:
        self.kernels: list[str] = []

    def serialize(self) -> bytes:
        return "\n".join(["made for this GPU", *self.kernels]).encode()

    def deserialize(self, blob: bytes) -> bool:
        head, *kernels = blob.decode(errors="replace").split("\n")
        if head != "made for this GPU":
            return False
        self.kernels = kernels
        return True


def jit(raw: Any, compiles: list[str]) -> Any:
    """`raw` with the interface that TensorRT for RTX adds: what it has to compile is told."""
    config = SimpleNamespace(create_runtime_cache=Compiled)
    config.set_runtime_cache = lambda cache: vars(config).update(cache=cache)
    plain = raw.create_execution_context

    def create(given: Any) -> Any:
        wanted = [node.name for node in raw.nodes]
        new = [name for name in wanted if name not in given.cache.kernels]
        given.cache.kernels += new
        compiles.extend(new)
        return plain()

    raw.create_runtime_config = lambda: config
    raw.create_execution_context = create
    return raw


def engine(name: str, file: Path | None, compiles: list[str]) -> LoadedEngine:
    """y = relu(x), by a node `name`."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name)], "g", [x], [y])
    proto: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    found = replace(fake_maker(cuda=FakeCuda()), compiled=file).make(proto)[0]
    return replace(found, raw=jit(found.raw, compiles))


def execute(name: str, file: Path | None) -> list[str]:
    """What is compiled to run an engine."""
    compiles: list[str] = []
    with TensorRTSession(engine(name, file, compiles)) as session:
        session.run({"x": np.zeros(4, np.float32)})
    return compiles


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`process()`: begin a new one."""

    def new() -> None:
        monkeypatch.setattr(runtime_cache, "_kept", {})

    new()
    return new


def test_the_next_process_compiles_nothing_again(process: Any, tmp_path: Path) -> None:
    file = tmp_path / "cache" / "compiled.bin"
    assert execute("first", file) == ["first"] and execute("first", file) == []
    process()
    assert execute("first", file) == [] and execute("second", file) == ["second"]
    process()
    assert execute("second", file) == [] and [p.name for p in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("content", [b"", b"of another GPU\nfirst", b"\xff\x00"])
def test_what_is_of_another_gpu_or_broken_is_replaced(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "compiled.bin"
    file.write_bytes(content)
    assert execute("first", file) == ["first"]
    assert file.read_bytes() == b"made for this GPU\nfirst"


def test_without_a_file_it_ends_with_the_process(process: Any, tmp_path: Path) -> None:
    assert execute("first", None) == ["first"] and execute("first", None) == []
    process()
    assert execute("first", None) == ["first"] and not list(tmp_path.iterdir())


def test_a_disk_that_refuses_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert execute("first", tmp_path / "file" / "compiled.bin") == ["first"]


def test_nothing_is_written_where_nothing_is_new(tmp_path: Path) -> None:
    file = tmp_path / "compiled.bin"
    execute("first", file)
    file.unlink()
    execute("first", file)
    assert not file.exists()


def test_the_interface_is_that_of_the_library(rtx: Library) -> None:
    trt = rtx.module
    assert trt.IRuntimeConfig.create_runtime_cache and trt.IRuntimeConfig.set_runtime_cache
    assert "-> bool" in trt.IRuntimeCache.deserialize.__doc__
    assert "IHostMemory" in trt.IRuntimeCache.serialize.__doc__
