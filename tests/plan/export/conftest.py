"""Plans to export, and TensorRT's own ONNX parser to say what it calls the layers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from qdebug.network.layers import find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.plan.export import EXPORT_TARGETS
from qdebug.plan.export.source import ExportSource, Rendered
from qdebug.plan.plan import PrecisionPlan, TensorRange, bind_plan
from qdebug.types import Precision

BUNDLED = Path(__file__).parents[3] / "calib_data"
LONG = "long" * 75


def source_of(model: Path, pins: Mapping[str, str] | None = None, **options: Any) -> ExportSource:
    """A plan for the model in a file; every INT8 layer's inputs get the range ±4."""
    precision = Precision(options.pop("precision", "int8"))
    layers = {name: Precision(p) for name, p in (pins or {}).items()}
    prepared = prepare_model(read_model(model), options.pop("opset", 13))
    found = find_layers(prepared.graph)
    plan = PrecisionPlan(precision, layers=layers, **options)
    bound = bind_plan(plan, prepared, found)
    ranges = {tensor: TensorRange(4.0) for tensor in bound.needed_ranges()}
    plan = replace(plan, tensors={**ranges, **plan.tensors})
    return ExportSource(prepared, bind_plan(plan, prepared, found), "precision.yaml")


@dataclass
class FakeTensor:
    name: str
    dtype: Any
    amax: float | None = None

    def set_dynamic_range(self, low: float, high: float) -> bool:
        assert low == -high
        self.amax = high
        return True


@dataclass
class FakeLayer:
    """A layer of TensorRT 10: as the parser made it, with the precision that TensorRT 11 and RTX
    no longer have."""

    name: str
    metadata: str
    type: Any
    inputs: list[FakeTensor]
    outputs: list[FakeTensor]
    precision: Any = None
    types: dict[int, Any] = field(default_factory=dict)

    @property
    def num_inputs(self) -> int:
        return len(self.inputs)

    def get_input(self, index: int) -> FakeTensor:
        return self.inputs[index]

    @property
    def num_outputs(self) -> int:
        return len(self.outputs)

    def get_output(self, index: int) -> FakeTensor:
        return self.outputs[index]

    def set_output_type(self, index: int, dtype: Any) -> None:
        self.types[index] = dtype


class FakeNetwork:
    """A copy of what TensorRT for RTX's parser makes of a model."""

    def __init__(self) -> None:
        self.inputs: list[FakeTensor] = []
        self.layers: list[FakeLayer] = []

    def parse(self, model: Path) -> FakeNetwork:
        import tensorrt_rtx as trt

        logger = trt.Logger(trt.Logger.ERROR)
        network = trt.Builder(logger).create_network(0)
        parser = trt.OnnxParser(network, logger)
        assert parser.parse_from_file(str(model)), parser.get_error(0).desc()
        self.inputs = [
            FakeTensor(t.name, t.dtype) for t in map(network.get_input, range(network.num_inputs))
        ]
        tensors = {t.name: t for t in self.inputs}
        layers = [network.get_layer(i) for i in range(network.num_layers)]
        for t in (x.get_output(i) for x in layers for i in range(x.num_outputs)):
            tensors[t.name] = FakeTensor(t.name, t.dtype)
        self.layers = [_copy(layer, tensors) for layer in layers]
        return self

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def num_inputs(self) -> int:
        return len(self.inputs)

    def get_layer(self, index: int) -> FakeLayer:
        return self.layers[index]

    def get_input(self, index: int) -> FakeTensor:
        return self.inputs[index]

    @property
    def precisions(self) -> dict[str, str]:
        """Precision by the first output of the constrained layers."""
        return {x.outputs[0].name: x.precision.name for x in self.layers if x.precision is not None}


def _copy(layer: Any, tensors: dict[str, FakeTensor]) -> FakeLayer:
    read = map(layer.get_input, range(layer.num_inputs))
    outputs = [tensors[layer.get_output(i).name] for i in range(layer.num_outputs)]
    inputs = [tensors[t.name] for t in read if t is not None]
    return FakeLayer(layer.name, layer.metadata, layer.type, inputs, outputs)


@pytest.fixture
def network() -> Callable[[Path], FakeNetwork]:
    """Parse a model; skips where TensorRT for RTX is not installed."""
    pytest.importorskip("tensorrt_rtx", reason="needs tensorrt-rtx-cu13 (its ONNX parser)")
    return lambda model: FakeNetwork().parse(model)


@pytest.fixture
def empty_network(network: Any) -> FakeNetwork:
    """One to parse into."""
    return FakeNetwork()


@pytest.fixture
def plan_for() -> Callable[..., ExportSource]:
    return source_of


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Rendered]:
    """Render a target into the test's folder and write it."""

    def export(source: ExportSource, target: str, name: str = "precision") -> Rendered:
        path = tmp_path / f"{name}{EXPORT_TARGETS[target].suffix}"
        rendered = EXPORT_TARGETS[target].render(source, path)
        for file, data in rendered.files.items():
            file.write_bytes(data)
        return rendered

    return export


@pytest.fixture
def script() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run an exported Python script as a program."""

    def run(path: Path, *args: object, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(path), *map(str, args)]
        return subprocess.run(command, capture_output=True, encoding="utf-8", **options)

    return run


@pytest.fixture(scope="session")
def cnn() -> Path:
    """The bundled CNN."""
    return BUNDLED / "digits_cnn.onnx"


@pytest.fixture
def odd_net(kit: SimpleNamespace, tmp_path: Path) -> Path:
    """Nodes without a name, with one name for two, and with names that tools quote or split at."""
    rng = np.random.default_rng(0)

    def values(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "", pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"], "dup"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "dup", pads=[1] * 4),
        helper.make_node("BatchNormalization", ["c2", *"gbmv"], ["n2"], "a/b:c; é"),
        helper.make_node("Add", ["n2", "r1"], ["s"], "a, b"),
        helper.make_node("Relu", ["s"], ["r2"], LONG),
        helper.make_node("Conv", ["r2", "w2"], ["c3"], "x*y", pads=[1] * 4),
        helper.make_node("Conv", ["c3", "w2"], ["c4"], 'it\'s "$HOME" \\ `id`', pads=[1] * 4),
        helper.make_node("GlobalAveragePool", ["c4"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["o"], "fc", transB=1),
        helper.make_node("MatMul", ["o", "w4"], ["out"], "w4"),
    ]
    weights = {"w1": values(4, 3, 3, 3), "b1": values(4), "w2": values(4, 4, 3, 3) / 6}
    weights |= {k: values(4) for k in "gbm"} | {"v": np.abs(values(4)) + 1}
    weights |= {"w3": values(5, 4), "b3": values(5), "w4": values(5, 5)}
    path = tmp_path / "odd net.onnx"
    onnx.save(kit.make(nodes, {"x": (1, 3, 8, 8)}, ["out"], weights), path)
    return path


@pytest.fixture
def all_pinned(odd_net: Path) -> ExportSource:
    """Every quantizable layer of it in FP32, but the middle one, which is FP16; the rest INT8."""
    layers = find_layers(prepare_model(read_model(odd_net)).graph)
    names: Sequence[str] = [layer.name for layer in layers if layer.quantizable]
    pins = {name: "fp16" if name == "x*y" else "fp32" for name in names if name != "w4"}
    return source_of(odd_net, pins)
