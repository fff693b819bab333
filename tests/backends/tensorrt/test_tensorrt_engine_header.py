"""Who built an engine, told by its first bytes: real engines, one made of another version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import refused

from qdebug.backends.engine import BuiltEngine
from qdebug.backends.tensorrt.execute.runtime import EngineHeader, engine_header, load_engine
from qdebug.backends.tensorrt.library import Library
from qdebug.backends.tensorrt.serialized import read_engine
from qdebug.engine_info.files.opening import open_engine_file
from qdebug.testing.cuda import FakeCuda

Built = Callable[[str, str], BuiltEngine]


def older(engine: bytes) -> bytes:
    """The engine as 1.6.1.120 would have written it, as far as its header tells."""
    return engine[:24] + bytes([1, 6, 1, 120]) + engine[28:]


def test_the_header_of_a_real_engine(rtx: Library, built: Built) -> None:
    engine = built("digits_cnn", "int8").engine
    assert engine_header(engine) == EngineHeader(rtx.version, whole=True)
    assert engine_header(engine[:-1]) == EngineHeader(rtx.version, whole=False)
    found = engine_header(older(engine))
    assert found is not None and found.builder == "TensorRT for RTX 1.6.1.120"


@pytest.mark.parametrize("data", [b"", b"vtrt", b"ptrt" + bytes(100), b"\x08\x08" * 100])
def test_anything_else_has_none(data: bytes) -> None:
    assert engine_header(data) is None


def test_an_engine_of_another_version_is_not_executed(rtx: Library, built: Built) -> None:
    engine = older(built("digits_cnn", "int8").engine)
    with refused("QD-BACKEND-ENGINE-REFUSED", rtx.name, "TensorRT for RTX 1.6.1.120"):
        load_engine(rtx, engine[:-1], FakeCuda())  # cut off: refused with a GPU or without


def test_an_engine_that_is_cut_off_is_said_without_a_gpu(built: Built, tmp_path: Path) -> None:
    path = tmp_path / "net.engine"
    path.write_bytes(built("digits_cnn", "int8").engine[:-100])
    with refused("QD-USAGE-ENGINE-FILE-DAMAGED", "net.engine", "--exportLayerInfo"):
        open_engine_file(path, read_engine)
