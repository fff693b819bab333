"""Tiny ONNX models, and ONNX Runtime to say what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.network.load import read_model
from qdebug.network.prepare import Model, prepare_model
from qdebug.network.weights import with_data

Feeds = Mapping[str, np.ndarray[Any, Any]]


class Net:
    """A model under construction."""

    def __init__(self, opset: int = 13, ir_version: int | None = None, seed: int = 0) -> None:
        self.opset = opset
        self.ir_version = ir_version
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.functions: list[onnx.FunctionProto] = []
        self.domains: dict[str, int] = {}

    def add(self, op: str, inputs: str, outputs: str, name: str = "", **attributes: Any) -> Net:
        """Add a node; names of tensors are separated by commas."""
        parts = [inputs.split(",") if inputs else [], outputs.split(",")]
        self.nodes.append(helper.make_node(op, *parts, name=name, **attributes))
        return self

    def const(self, name: str, values: object) -> Net:
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return self

    def random(self, name: str, *shape: int, dtype: str = "float32") -> Net:
        return self.const(name, self.rng.normal(size=shape).astype(dtype))

    def conv(
        self, source: str, output: str, weight: str = "w", name: str = "", **attrs: Any
    ) -> Net:
        """A 3×3 convolution from 3 to 4 channels that keeps the size."""
        if weight not in {w.name for w in self.weights}:
            self.random(weight, 4, 3, 3, 3)
        return self.add("Conv", f"{source},{weight}", output, name, pads=[1] * 4, **attrs)

    def batch_norm(self, source: str, output: str, name: str = "", dtype: str = "float32") -> Net:
        """BatchNormalization of 4 channels."""
        if "bn_scale" not in {w.name for w in self.weights}:
            for k in ("bn_scale", "bn_bias", "bn_mean"):
                self.random(k, 4, dtype=dtype)
            self.const("bn_var", self.rng.uniform(0.5, 2, 4).astype(dtype))
        inputs = f"{source},bn_scale,bn_bias,bn_mean,bn_var"
        return self.add("BatchNormalization", inputs, output, name)

    def model(
        self,
        outputs: str | Sequence[onnx.ValueInfoProto] = "y",
        shape: Sequence[int | str] = (1, 3, 8, 8),
        inputs: Sequence[onnx.ValueInfoProto] | None = None,
        rank: int | None = 4,
        elem_type: int = TensorProto.FLOAT,
    ) -> onnx.ModelProto:
        """The model; its input is "x" unless `inputs` are given."""
        if isinstance(outputs, str):
            free = None if rank is None else [None] * rank
            outputs = [
                helper.make_tensor_value_info(o, elem_type, free) for o in outputs.split(",")
            ]
        if inputs is None:
            inputs = [helper.make_tensor_value_info("x", elem_type, shape)]
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(d, v) for d, v in self.domains.items()]
        ir = self.ir_version or max(8, helper.find_min_ir_version_for(opsets[:1]))
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.weights)
        if ir < 4:  # as old exporters wrote it
            graph.input.extend(
                helper.make_tensor_value_info(w.name, w.data_type, w.dims) for w in self.weights
            )
        return helper.make_model(
            graph, opset_imports=opsets, ir_version=ir, functions=self.functions
        )


@pytest.fixture
def net() -> type[Net]:
    return Net


@pytest.fixture
def save(tmp_path: Path) -> Callable[[onnx.ModelProto], Path]:
    def write(proto: onnx.ModelProto) -> Path:
        path = tmp_path / "model.onnx"
        path.write_bytes(proto.SerializeToString())
        return path

    return write


@pytest.fixture
def prepared(save: Callable[[onnx.ModelProto], Path]) -> Callable[..., Model]:
    def prepare(proto: onnx.ModelProto, **options: Any) -> Model:
        return prepare_model(read_model(save(proto)), **options)

    return prepare


def run_with_ort(proto: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray[Any, Any]]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    proto = with_data(proto)
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, dict(feeds))


@pytest.fixture
def execute() -> Callable[[onnx.ModelProto, Feeds], list[np.ndarray[Any, Any]]]:
    return run_with_ort


@pytest.fixture
def same_outputs(prepared: Callable[..., Model]) -> Callable[..., Model]:
    """Prepare a model; check that it is valid and computes what the original does."""

    def check(proto: onnx.ModelProto, feeds: Feeds | None = None, **options: Any) -> Model:
        model = prepared(proto, **options)
        if feeds is None:
            spec = model.graph.inputs[0]
            shape = [d if isinstance(d, int) else 2 for d in spec.shape]
            feeds = {spec.name: np.random.default_rng(1).normal(size=shape).astype(spec.dtype)}
        kinds = {v.name: v.type.tensor_type.elem_type for v in proto.graph.input}
        own = {t: a.astype(helper.tensor_dtype_to_np_dtype(kinds[t])) for t, a in feeds.items()}
        expected = run_with_ort(proto, own)
        found = run_with_ort(model.graph.proto, feeds)
        assert [o.name for o in proto.graph.output] == list(model.graph.outputs)
        half = any(a.dtype == np.float16 for a in expected)
        for want, got in zip(expected, found, strict=True):
            assert want.shape == got.shape
            # What is in FP16 at its ends is in FP32 there, see prepare.
            assert got.dtype == (np.float32 if want.dtype == np.float16 else want.dtype)
            np.testing.assert_allclose(
                got, want, rtol=1e-2 if half else 1e-4, atol=2e-2 if half else 1e-5
            )
        names = [n.name for n in model.graph.nodes]
        assert all(names) and len(set(names)) == len(names)
        assert set(model.origins) == set(names)
        return model

    return check
