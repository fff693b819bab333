"""TensorRT and a GPU made of ONNX's reference evaluator: what executes engines is tested with it.

An engine is the ONNX model itself; a kernel is a node; the GPU's memory is the host's.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from onnx import checker, defs, helper, shape_inference

from qdebug.backends.capture import mark_outputs
from qdebug.backends.engine import BuiltEngine
from qdebug.backends.tensorrt.build.logger import LogCollector
from qdebug.backends.tensorrt.build.settings import BuildSettings
from qdebug.backends.tensorrt.execute.runtime import Shape
from qdebug.backends.tensorrt.factory import EngineFactory
from qdebug.backends.tensorrt.library import Library, LibraryKind
from qdebug.errors import ModelError
from qdebug.network.convert import reason_in
from qdebug.network.graph import opset_of
from qdebug.testing.backend import reference_compute
from qdebug.testing.cuda import FakeCuda

NAME = "TensorRT for RTX 0.0"
_KINDS = {"float32": "FLOAT", "float16": "HALF"}


class _Mode(Enum):
    INPUT = 0
    OUTPUT = 1


class _Location(Enum):
    DEVICE = 0
    HOST = 1


class _Callback:
    """What a listener or a profiler is derived from."""


class _Runtime:
    def __init__(self, logger: object) -> None:
        pass

    def deserialize_cuda_engine(self, data: bytes) -> _Raw | None:
        return _Raw(data) if data else None


class _Raw:
    """A `trt.ICudaEngine`. A tensor in `heard` is told to the listener under its name there."""

    def __init__(self, data: bytes) -> None:
        proto = onnx.ModelProto.FromString(data)
        facts = {p.key: json.loads(p.value) for p in proto.metadata_props}
        self.heard: dict[str, str] = facts["heard"]
        self.profile: dict[str, list[list[int]]] = facts["profile"]
        self.values = {v.name: v for v in (*proto.graph.input, *proto.graph.output)}
        self.inputs = [v.name for v in proto.graph.input]
        self.outputs = [v.name for v in proto.graph.output if v.name not in self.heard]
        self.nodes = list(proto.graph.node)
        self.compute = reference_compute(proto)

    @property
    def num_io_tensors(self) -> int:
        return len(self.inputs) + len(self.outputs)

    def get_tensor_name(self, index: int) -> str:
        return [*self.inputs, *self.outputs][index]

    def get_tensor_mode(self, name: str) -> _Mode:
        return _Mode.INPUT if name in self.inputs else _Mode.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        return data_type(self.dtype(name))

    def get_tensor_location(self, name: str) -> _Location:
        return _Location.DEVICE

    def get_tensor_shape(self, name: str) -> Shape:
        axes = self.values[name].type.tensor_type.shape.dim
        return tuple(axis.dim_value or -1 for axis in axes)

    def get_tensor_profile_shape(self, name: str, index: int) -> list[list[int]]:
        return self.profile[name]

    def create_execution_context(self) -> _Context:
        return _Context(self)

    def create_engine_inspector(self) -> _Raw:
        return self

    def get_engine_information(self, form: object) -> str:
        layers = []
        for node in self.nodes:
            outputs = [
                {"Name": self.heard[t], "Datatype": "Float", "Format": "Linear"}
                for t in node.output
                if t in self.heard
            ]
            metadata = f"[ONNX Layer: {node.name}]"
            layers.append({"Name": node.name, "LayerType": "kgen"} | {"Metadata": metadata})
            layers[-1] |= {"Inputs": [], "Outputs": outputs}  # type: ignore[dict-item]
        return json.dumps({"Layers": layers})

    def dtype(self, name: str) -> np.dtype[np.generic]:
        kind = self.values[name].type.tensor_type.elem_type
        return np.dtype(helper.tensor_dtype_to_np_dtype(kind))


def data_type(dtype: np.dtype[np.generic]) -> Any:
    """The `trt.DataType` of a numpy type."""
    return SimpleNamespace(name=_KINDS.get(dtype.name, dtype.name.upper()))


class _Context:
    """A `trt.IExecutionContext`."""

    unfused_tensors_debug_state = False

    def __init__(self, raw: _Raw) -> None:
        self._raw = raw
        self._addresses: dict[str, int] = {}
        self._shapes: dict[str, Shape] = {}
        self._results: dict[str, Any] = {}
        self._listener: Any = None
        self.profiler: Any = None

    def set_input_shape(self, name: str, shape: Shape) -> bool:
        self._shapes[name] = shape
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        self._addresses[name] = address
        return True

    def infer_shapes(self) -> list[str]:
        zeros = {n: np.zeros(self._shapes[n], self._raw.dtype(n)) for n in self._raw.inputs}
        self._results = dict(self._raw.compute(zeros, self._raw.outputs))
        return []

    def get_tensor_shape(self, name: str) -> Shape:
        return tuple(self._results[name].shape)

    def set_debug_listener(self, listener: Any) -> bool:
        self._listener = listener
        return True

    def set_all_tensors_debug_state(self, state: bool) -> bool:
        return state

    def execute_async_v3(self, stream: int) -> bool:
        raw = self._raw
        feeds = {}
        for name in raw.inputs:
            like = np.zeros(self._shapes[name], raw.dtype(name))
            data = ctypes.string_at(self._addresses[name], like.nbytes)
            feeds[name] = np.frombuffer(data, like.dtype).reshape(like.shape)
        found = raw.compute(feeds, [*raw.outputs, *raw.heard])
        for name in raw.outputs:
            array = np.ascontiguousarray(found[name])
            ctypes.memmove(self._addresses[name], array.ctypes.data, array.nbytes)
        if self._listener is not None:
            for name, alias in raw.heard.items():
                array = np.ascontiguousarray(found[name])
                self._listener.process_debug_tensor(
                    array.ctypes.data,
                    _Location.HOST,
                    data_type(array.dtype),
                    array.shape,
                    alias,
                    stream,
                )
        if self.profiler is not None:
            for node in raw.nodes:
                self.profiler.report_layer_time(node.name, 0.5)
        return True


def fake_library() -> Library:
    """A Library whose module is the fake."""
    module = SimpleNamespace(
        Runtime=_Runtime,
        TensorIOMode=_Mode,
        TensorLocation=_Location,
        IDebugListener=_Callback,
        IProfiler=_Callback,
        LayerInformationFormat=SimpleNamespace(JSON=0),
    )
    return Library(LibraryKind.RTX, module, (0, 0), LogCollector(), None)


def fake_build(
    library: Library,
    proto: onnx.ModelProto,
    settings: BuildSettings,
    *,
    outputs: Sequence[str] = (),
    debug: Sequence[str] = (),
    **_: object,
) -> BuiltEngine:
    """See `build_engine`.

    Raises:
        ModelError: ONNX's checker does not take the model.
    """
    unfused = {t for n in proto.graph.node for t in n.output if settings.unfused_debug_tensors}
    present = {v.name for v in proto.graph.output}
    quiet = [t for t in (*debug, *sorted(unfused)) if t and t not in present]
    marked, _skipped = mark_outputs(proto, [*outputs, *quiet])
    del marked.graph.value_info[:]  # inference would leave the new outputs untyped
    names = {t: f"__mye{k}" if unfused else t for k, t in enumerate(quiet)}
    shapes = {n: [r.min, r.opt, r.max] for n, r in (settings.profile or {}).items()}
    for key, facts in (("heard", names), ("profile", shapes)):
        marked.metadata_props.add(key=key, value=json.dumps(facts))
    try:
        typed = shape_inference.infer_shapes(marked, strict_mode=True)
        checker.check_model(typed)
        if opset_of(typed) > defs.onnx_opset_version():
            raise ValueError(f"opset {opset_of(typed)} is not known")
        reference_compute(typed)
    except Exception as error:
        message = f"{NAME} cannot parse the model: {reason_in(error)}"
        raise ModelError(message, code="QD-MODEL-REFUSED") from error
    return BuiltEngine(typed.SerializeToString(), "", (), (), 0.0, "")


def fake_maker(
    settings: BuildSettings | None = None, cuda: FakeCuda | None = None
) -> EngineFactory:
    """An EngineFactory of fakes."""
    return EngineFactory(
        fake_library(), settings or BuildSettings(), cuda=cuda or FakeCuda(), build=fake_build
    )
