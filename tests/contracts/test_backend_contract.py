"""Every backend keeps the contract that `qdebug.testing` ships."""

from __future__ import annotations

import numpy as np
import pytest

from qdebug.backends.base import Backend
from qdebug.backends.registry import BackendSpec
from qdebug.backends.tensorrt.backend import TensorRTBackend
from qdebug.backends.tensorrt.build.settings import BuildSettings, ShapeRange
from qdebug.backends.tensorrt.process import open_rtx
from qdebug.errors import QdebugError
from qdebug.testing import BackendContract, FakeBackend
from qdebug.testing.tensorrt import fake_maker
from qdebug.types import TensorSpec

UP_TO_8 = BuildSettings(profile={"x": ShapeRange((1, 4), (2, 4), (8, 4))})


class TestSimulation(BackendContract):
    backend_name = "simulation"
    called = "ONNX Runtime"


class TestOnnxRuntime(BackendContract):
    backend_name = "onnxruntime"
    called = "ONNX Runtime"


class TestOpenVINO(BackendContract):
    backend_name = "openvino"
    called = "OpenVINO"


class TestFake(BackendContract):
    backend_name = "fake"

    def open_backend(self) -> Backend:
        return FakeBackend()


class TestFakeEngine(BackendContract):
    """The code that executes TensorRT's engines, on a GPU that is the host's memory."""

    backend_name = "tensorrt-rtx"
    called = "TensorRT for RTX"

    def open_backend(self) -> Backend:
        return TensorRTBackend(fake_maker(UP_TO_8))

    def registered(self) -> BackendSpec:
        pytest.skip("a fake builds nothing")


class TestTensorRTForRTX(BackendContract):
    """On a GPU that it executes on. Version 1.6 has no INT8 convolutions on an H100 or H200."""

    backend_name = "tensorrt-rtx"
    called = "TensorRT for RTX"
    products = ("dense",)

    def open_backend(self) -> Backend:
        try:
            runtime = open_rtx()
        except QdebugError as error:
            pytest.skip(f"needs TensorRT for RTX: {error.message}")
        if runtime.not_run:
            pytest.skip(f"needs a GPU: {runtime.not_run}")
        shapes: list[dict[str, tuple[int, ...]]] = [{"x": (n, 4)} for n in (2, 1, 8)]
        return runtime.fitted([TensorSpec("x", ("N", 4), np.dtype(np.float32))], shapes)
