"""A folder with a small network and its samples, and qdebug run in it, in or out of process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.cli.app import main

REPOSITORY = Path(__file__).parents[2]
_MOST_LINES = 12
"""Of a message: one that shows a script to start from takes most."""


def build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Mapping[str, Sequence[int | str | None]],
    weights: Mapping[str, Any] | None = None,
    opset: int = 17,
    kind: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """A model; inputs and outputs are of one type."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, kind, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, kind, s) for n, s in outputs.items()],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def small_cnn(batch: int | str = "N", names: Mapping[str, str] | None = None) -> onnx.ModelProto:
    """conv1-relu1-conv2+residual-relu2-pool-flatten-fc; input x [batch, 3, 8, 8], output out."""
    rng = np.random.default_rng(0)
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1] * 4),
        node("Relu", ["c1"], ["r1"], "relu1"),
        node("Conv", ["r1", "w2"], ["c2"], "conv2", pads=[1] * 4),
        node("Add", ["c2", "r1"], ["s"], "add"),
        node("Relu", ["s"], ["r2"], "relu2"),
        node("GlobalAveragePool", ["r2"], ["p"], "pool"),
        node("Flatten", ["p"], ["f"], "flatten"),
        node("Gemm", ["f", "w3", "b3"], ["out"], "fc", transB=1),
    ]
    for each in nodes:
        each.name = (names or {}).get(each.name, each.name)
    weights = {
        "w1": rng.normal(size=(4, 3, 3, 3)).astype(np.float32),
        "b1": rng.normal(size=4).astype(np.float32),
        "w2": (rng.normal(size=(4, 4, 3, 3)) / 6).astype(np.float32),
        "w3": rng.normal(size=(5, 4)).astype(np.float32),
        "b3": rng.normal(size=5).astype(np.float32),
    }
    return build(nodes, {"x": (batch, 3, 8, 8)}, {"out": (batch, 5)}, weights)


def images(count: int, seed: int = 1) -> np.ndarray[Any, Any]:
    """Samples for small_cnn."""
    return np.random.default_rng(seed).normal(size=(count, 3, 8, 8)).astype(np.float32)


def _no_constant(token: str) -> None:
    raise AssertionError(f"{token} is not JSON")


def strict_json(text: str) -> Any:
    """JSON by the letter: NaN and Infinity are refused."""
    return json.loads(text, parse_constant=_no_constant)


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return strict_json(self.out)


class Desk:
    """The working directory of one test: net.onnx (FP32), data.npz (with labels), calib.npz."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def save(self, proto: onnx.ModelProto, name: str = "net.onnx") -> str:
        (self.folder / name).write_bytes(proto.SerializeToString())
        return name

    def data(self, name: str = "data.npz", **arrays: Any) -> str:
        np.savez(self.folder / name, **arrays)
        return name

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text, encoding="utf-8")
        return name

    def run(self, *args: object) -> Done:
        """In this process."""
        self._capsys.readouterr()
        code = main([str(a) for a in args])
        captured = self._capsys.readouterr()
        return Done(code, captured.out, captured.err)

    def spawn(self, *args: object, fresh: bool = False, **options: Any) -> Done:
        """As a program of its own; a `fresh` one imports everything itself."""
        words = ["-m", "qdebug", *map(str, args)]
        options |= {"cwd": self.folder, "timeout": 120}
        ended = (
            subprocess.run(
                [sys.executable, *words], capture_output=True, encoding="utf-8", **options
            )
            if fresh
            else forked.run(words, **options)
        )
        return Done(ended.returncode, ended.stdout, ended.stderr)

    @contextmanager
    def started(self, *args: object, **options: Any) -> Iterator[subprocess.Popen[str]]:
        """As a program that ends with the block, also where a test fails."""
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "qdebug", *map(str, args)]
        with subprocess.Popen(
            command, cwd=self.folder, stdout=pipe, stderr=pipe, text=True, **options
        ) as running:
            try:
                yield running
            finally:
                running.kill()

    def compare(self, *flags: object) -> Done:
        """On the small network."""
        return self.run("compare", "net.onnx", "--inputs", "data.npz", *flags)

    def result(self, *flags: object) -> Any:
        """The JSON of a comparison that must end well."""
        done = self.compare(*flags, "--json", "-")
        assert done.code in (0, 1), done.err
        assert not done.err
        return done.json

    def refused(self, *args: object, says: Sequence[str], spawn: bool = False) -> Done:
        """Run something that must be refused: exit 2, one clear message, nothing written.

        `says` holds the code of the error, and names and figures that the message must hold.
        """
        (code,) = (text for text in says if text.startswith("QD-"))
        before = self.files()
        done = (self.spawn if spawn else self.run)(*args)
        assert done.code == 2, done
        assert done.out == ""
        assert done.err.startswith("qdebug: error: ")
        assert len(done.err.splitlines()) <= _MOST_LINES, done.err
        assert "Traceback" not in done.err and "internal" not in done.err
        assert f"[{code}]" in done.err, done.err
        for text in says:
            assert text in done.err, done.err
        assert self.files() == before, "something was written"
        return done

    def files(self) -> dict[str, bytes]:
        """Every file of the folder, hidden ones included."""
        found = (p for p in self.folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
        return {str(p.relative_to(self.folder)): p.read_bytes() for p in found}


@pytest.fixture
def desk(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Desk:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), str(tmp_path)]))
    monkeypatch.setenv("QDEBUG_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    made = Desk(tmp_path, capsys)
    made.save(small_cnn())
    made.data(x=images(12), labels=np.arange(12) % 5)
    made.data("calib.npz", x=images(8, seed=2))
    return made


@pytest.fixture
def cnn() -> Callable[..., onnx.ModelProto]:
    return small_cnn


@pytest.fixture
def make() -> Callable[..., onnx.ModelProto]:
    return build


@pytest.fixture
def pictures() -> Callable[..., np.ndarray[Any, Any]]:
    return images


@pytest.fixture
def load_json() -> Callable[[str], Any]:
    return strict_json


@pytest.fixture
def digits() -> Path:
    return REPOSITORY / "calib_data"


@pytest.fixture
def repository() -> Path:
    return REPOSITORY
