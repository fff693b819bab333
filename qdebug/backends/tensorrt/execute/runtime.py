"""A serialized engine made ready to execute, and what it reads and writes.

The header of an engine of TensorRT for RTX is not documented; seen, alike, in engines of 1.6.1 and
1.7.1: the letters "vtrt", at 16 the size of the whole as a 64-bit number, at 24 the version, a byte
for each of its four numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from qdebug.backends.tensorrt.build.logger import LogMessage
from qdebug.backends.tensorrt.execute.cuda import MEMORY_HINT, Cuda, DeviceMemoryError, open_cuda
from qdebug.backends.tensorrt.execute.runtime_cache import runtime_cache, save_runtime_cache
from qdebug.backends.tensorrt.library import Library
from qdebug.errors import BackendError
from qdebug.types import Skipped

_MAGIC = b"vtrt"
_LENGTH = 64


@dataclass(frozen=True)
class EngineHeader:
    """What the header says.

    Attributes:
        version: of the library that built it, such as (1, 7, 1, 116).
        whole: nothing is cut off.
    """

    version: tuple[int, ...]
    whole: bool

    @property
    def builder(self) -> str:
        """The library that built it, for people."""
        return f"TensorRT for RTX {'.'.join(map(str, self.version))}"


def engine_header(data: bytes) -> EngineHeader | None:
    """The header of an engine; None for an engine of another library, or anything else."""
    if data[:4] != _MAGIC or len(data) < _LENGTH:
        return None
    size = int.from_bytes(data[16:24], "little")
    return EngineHeader(tuple(data[24:28]), whole=size == len(data))


Shape = tuple[int, ...]

_NUMPY = {
    "FLOAT": np.float32,
    "HALF": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "INT8": np.int8,
    "INT32": np.int32,
    "INT64": np.int64,
    "BOOL": np.bool_,
    "UINT8": np.uint8,
}


@dataclass(frozen=True)
class Port:
    """An input or output of an engine.

    Attributes:
        dtype: None where numpy has no such type.
        type_name: TensorRT's name of the type.
        shape: -1 for an axis that varies.
        on_host: it lives in the host's memory: it decides shapes.
        range: of an input, the least and the largest shape it may have.
    """

    name: str
    dtype: np.dtype[np.generic] | None
    type_name: str
    shape: Shape
    on_host: bool
    range: tuple[Shape, Shape] | None = None


@dataclass(frozen=True)
class LoadedEngine:
    """An engine in the GPU's memory.

    Attributes:
        raw: the `trt.ICudaEngine`.
        runtime: the `trt.IRuntime` that it needs as long as it lives.
        inputs, outputs: in the engine's order.
        compiled: the file that keeps what is compiled for it; None keeps it in memory.
    """

    library: Library
    cuda: Cuda = field(repr=False)
    raw: Any = field(repr=False)
    runtime: Any = field(repr=False)
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    compiled: Path | None = None


class Contexts:
    """Makes the execution contexts of one engine. Must live as long as they do.

    All engines of a process share what TensorRT for RTX compiles for them: see `runtime_cache`.
    """

    def __init__(self, engine: LoadedEngine) -> None:
        self._engine = engine
        self._config: Any = None
        if hasattr(engine.raw, "create_runtime_config"):
            config = engine.raw.create_runtime_config()
            if hasattr(config, "create_runtime_cache"):
                with engine.cuda.current():
                    cache = runtime_cache(engine.library.name, config, engine.compiled)
                    config.set_runtime_cache(cache)
                self._config = config

    def create(self) -> Any:
        """A `trt.IExecutionContext`, or None where TensorRT refuses."""
        if self._config is None:
            return self._engine.raw.create_execution_context()
        return self._engine.raw.create_execution_context(self._config)

    def save(self) -> None:
        """Keep what was compiled so far for the next process."""
        if self._config is not None and self._engine.compiled is not None:
            with self._engine.cuda.current():
                save_runtime_cache(self._engine.library.name, self._engine.compiled)


def numpy_type(data_type: Any) -> np.dtype[np.generic] | None:
    """The numpy type of a `trt.DataType`, or None."""
    kind = _NUMPY.get(data_type.name)
    return None if kind is None else np.dtype(kind)


def given_type(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """The type in which a tensor of an engine is handed on: FP32 for BF16, which numpy lacks."""
    return np.dtype(np.float32) if dtype.kind == "V" else dtype


def load_engine(
    library: Library,
    engine: bytes,
    cuda: Cuda | None = None,
    *,
    host_code: bool = False,
    compiled: Path | None = None,
) -> LoadedEngine:
    """Deserialize an engine.

    Args:
        host_code: run what the engine brings for the host: the runtime of a version-compatible
            one. Only for engines that were built here.
        compiled: see LoadedEngine.

    Raises:
        UsageError: pycuda is not installed.
        BackendError: no GPU, or one that the library does not execute on; an engine of another
            version, GPU or platform, or no engine at all.
    """
    cuda = cuda or open_cuda()
    trt = library.module
    with cuda.current(), library.logs.collecting() as messages:
        try:
            runtime = trt.Runtime(library.logger)
            if host_code:
                runtime.engine_host_code_allowed = True
            raw = runtime.deserialize_cuda_engine(engine)
        except TypeError:  # pybind11's word for a constructor that gave nothing
            raw = None
    if raw is None:
        raise _refused(library, messages, engine_header(engine))
    ports = [_port(trt, raw, raw.get_tensor_name(k)) for k in range(raw.num_io_tensors)]
    inputs = tuple(p for p in ports if p.range is not None)
    outputs = tuple(p for p in ports if p.range is None)
    return LoadedEngine(library, cuda, raw, runtime, inputs, outputs, compiled)


def layers_json(engine: LoadedEngine) -> str:
    """What the engine's own inspector reports of its layers.

    Raises:
        BackendError: it reports nothing.
    """
    trt = engine.library.module
    with engine.cuda.current(), engine.library.logs.collecting() as messages:
        inspector = engine.raw.create_engine_inspector()
        text = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    if not text:
        raise failure(engine.library, "tell the engine's layers", messages)
    return str(text)


def _port(trt: Any, raw: Any, name: str) -> Port:
    data_type = raw.get_tensor_dtype(name)
    shape = tuple(raw.get_tensor_shape(name))
    limits = None
    if raw.get_tensor_mode(name) == trt.TensorIOMode.INPUT:
        limits = (shape, shape)
        if -1 in shape:
            low, _, high = raw.get_tensor_profile_shape(name, 0)
            limits = tuple(low), tuple(high)
    on_host = raw.get_tensor_location(name) == trt.TensorLocation.HOST
    return Port(name, numpy_type(data_type), data_type.name, shape, on_host, limits)


def skipped_outputs(engine: LoadedEngine) -> tuple[Skipped, ...]:
    """Outputs that cannot be read, and why."""
    return tuple(
        Skipped(p.name, f"numpy has no {p.type_name}") for p in engine.outputs if p.dtype is None
    )


def byte_count(shape: Sequence[int], dtype: np.dtype[np.generic]) -> int:
    """Bytes of a tensor."""
    return math.prod(shape) * dtype.itemsize


def errors_in(messages: Sequence[LogMessage]) -> str:
    """The errors of a log in one line; "" if there are none."""
    texts = [m.text for m in messages if m.severity in ("ERROR", "INTERNAL_ERROR")]
    return " ".join("; ".join(dict.fromkeys(texts)).split())[:600]


def failure(
    library: Library,
    action: str,
    messages: Sequence[LogMessage],
    code: str = "QD-BACKEND-EXECUTE",
) -> BackendError:
    """The error for a call that TensorRT refused, with a `code` where no other is known."""
    text = errors_in(messages)
    if "out of memory" in text.lower() or "outofmemory" in text.lower():
        return DeviceMemoryError(
            f"{library.name} could not {action}: the GPU has no memory left",
            MEMORY_HINT,
            code="QD-BACKEND-MEMORY",
        )
    return BackendError(
        f"{library.name} could not {action}: {text or 'it did not say why'}", code=code
    )


_REFUSALS: Mapping[str, tuple[str, str]] = {
    "does not support this compute capability": (
        "does not execute on this GPU",
        "Versions differ: 1.6 executes on compute capability 9.0, 1.7 does not.",
    ),
    "Version tag does not match": (
        "cannot execute an engine that another version built",
        "Build it again with this version.",
    ),
    "magicTag": ("was given something other than an engine of its own", "Build the engine again."),
    "header.size == blobSize": ("was given an engine that is cut off", "Build it again."),
    "different GPU": (
        "cannot execute an engine that was built for another GPU",
        "Build it on this one, or name its compute capability.",
    ),
    "incompatible device": (
        "cannot execute an engine that was built for another GPU",
        "Build it on this one, or name its compute capability.",
    ),
}


def _refused(
    library: Library, messages: Sequence[LogMessage], header: EngineHeader | None
) -> BackendError:
    text = errors_in(messages)
    if header is not None and header.version != library.version:
        error = BackendError(
            f"{library.name} cannot execute an engine that {header.builder} built",
            "Build it again with this version, or run it with that one.",
            code="QD-BACKEND-ENGINE-REFUSED",
        )
        error.add_note(text)
        return error
    for part, (problem, hint) in _REFUSALS.items():
        if part in text:
            error = BackendError(
                f"{library.name} {problem}", hint, code="QD-BACKEND-ENGINE-REFUSED"
            )
            error.add_note(text)
            return error
    return failure(library, "load the engine", messages, code="QD-BACKEND-ENGINE-NOT-LOADED")
