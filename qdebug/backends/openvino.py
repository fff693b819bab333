"""OpenVINO on the CPU: executes the explicit Q/DQ model with INT8 kernels, on any machine.

It needs no GPU, so everything that takes a real engine can be tried, and is tested, with it. Layers
that a plan wants in FP16 run in FP32: the CPU plugin is told not to use a lower precision than
that, since it would do so for the whole model. The audit shows them.

The layers are read from the runtime model (`exec_graph`), which gives for each its precision, the
operations of the model that were fused into it, and its kernel.
"""

from __future__ import annotations

import io
import os
import re
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from qdebug.backends.base import check_imports
from qdebug.backends.capture import mark_outputs
from qdebug.engine_info.layers import EngineInfo, EngineLayer, InfoSource, Role
from qdebug.engine_info.measurements import LayerTime
from qdebug.engine_info.tensors import EngineTensor
from qdebug.errors import BackendError, ModelError, QdebugError
from qdebug.network.layers import QUANTIZABLE_OPS
from qdebug.network.weights import ONE_FILE_BYTES, on_disk, serialized, size_with_data
from qdebug.types import Feeds, Skipped, Tensors

_ROUNDS = 10
_DTYPES = {
    "f32": "fp32",
    "f16": "fp16",
    "bf16": "bf16",
    "f64": "fp64",
    "boolean": "bool",
    "i8": "int8",
    "u8": "int8",
    "i4": "int4",
    "u4": "int4",
    "i32": "int32",
    "i64": "int64",
}
"""Unsigned quantized values count as the same 8-bit kernel."""

_UNPROCESSED = frozenset({"Const", "Input", "Output"})
"""Entries of the runtime model that execute nothing."""


class OpenVINOBackend:
    """See Backend."""

    name = "openvino"

    def __init__(self, threads: int | None = None) -> None:
        """Use so many `threads`; None: one for each core that this process may use."""
        import openvino

        # Processes that know nothing of each other would all begin with the first core.
        few = {"INFERENCE_NUM_THREADS": threads, "ENABLE_CPU_PINNING": False}
        limit = {} if threads is None else few
        self._config = {"INFERENCE_PRECISION_HINT": "f32", **limit}
        self._core = openvino.Core()
        version = openvino.__version__.split("-")[0]
        self.label = f"OpenVINO {version}"
        self.device_name = str(self._core.get_property("CPU", "FULL_DEVICE_NAME")).strip()

    def open(self, proto: onnx.ModelProto, capture: Sequence[str]) -> OpenVINOSession:
        """See Backend.open.

        Raises:
            ModelError: OpenVINO cannot read or compile the model.
        """
        check_imports(proto, self.label)
        with _mapped_errors(_refused):
            marked, skipped = mark_outputs(proto, capture)
            model = self._read(marked)
            compiled = self._core.compile_model(model, "CPU", self._config)
        names = [v.name for v in proto.graph.output]
        absent = {s.tensor for s in skipped}
        names += [t for t in dict.fromkeys(capture) if t not in {*names, *absent}]
        return OpenVINOSession(self, proto, model, compiled, names, skipped)

    def _read(self, proto: onnx.ModelProto) -> Any:
        if size_with_data(proto) <= ONE_FILE_BYTES:
            return self._core.read_model(serialized(proto))
        with on_disk(proto) as path:
            return self._core.read_model(path)

    def profiled(self, model: Any) -> Any:
        """`model`, compiled with profiling of its layers."""
        return self._core.compile_model(model, "CPU", {**self._config, "PERF_COUNT": True})


class OpenVINOSession:
    """See Session. It also describes and times its layers, and can be written to a file."""

    def __init__(
        self,
        backend: OpenVINOBackend,
        proto: onnx.ModelProto,
        model: Any,
        compiled: Any,
        names: Sequence[str],
        skipped: Sequence[Skipped],
    ) -> None:
        """`names` are those of the outputs of `compiled`, in its order."""
        self._backend, self._model = backend, model
        self._owners = _Owners.of(proto)
        self._compiled: Any = compiled
        self._idle: list[Any] = []
        self._lock = threading.Lock()
        self._inputs = {port.get_any_name(): port for port in compiled.inputs}
        self.dtypes: Mapping[str, np.dtype[np.generic]] = {
            name: np.dtype(port.get_element_type().to_dtype())
            for name, port in zip(names, compiled.outputs, strict=True)
        }
        self.skipped = tuple(skipped)

    def run(self, feeds: Feeds) -> Tensors:
        """See Session.run.

        Raises:
            BackendError: it failed, a feed is missing or does not fit, or the session is closed.
        """
        compiled = self._open()
        used = _checked(self._inputs, feeds)
        with self._request(compiled) as request, _mapped_errors():
            found = request.infer(used, share_inputs=True, share_outputs=False)
            return {n: np.array(found[k]) for k, n in enumerate(self.dtypes)}

    def engine_info(self) -> EngineInfo:
        """See run.engine.Described.

        Raises:
            BackendError: the session is closed.
        """
        operations = self._open().get_runtime_model().get_ordered_ops()
        found = (_layer(op, self._owners) for op in operations)
        layers = tuple(layer for layer in found if layer is not None)
        in_int8 = any(x.role is Role.MATRIX and x.precision == "int8" for x in layers)
        return EngineInfo(
            layers,
            InfoSource.RUNTIME,
            library=self._backend.label.removeprefix("OpenVINO "),
            notes=(_SATURATES,) if in_int8 and saturates() else (),
        )

    def layer_times(self, feeds: Feeds) -> tuple[LayerTime, ...]:
        """See run.engine.Profiled: medians of 10 executions. A second model is compiled for it, as
        measuring layers makes a model slower.

        Raises:
            BackendError: see `run`.
        """
        self._open()
        used = _checked(self._inputs, feeds)
        rounds: list[list[Any]] = []
        with _mapped_errors():
            request = self._backend.profiled(self._model).create_infer_request()
            for _ in range(_ROUNDS + 1):
                request.infer(used)
                rounds.append(request.profiling_info)
        # By position: names may repeat. What takes no time counts as not executed at times.
        return tuple(
            LayerTime(
                entries[0].node_name,
                statistics.median(e.real_time.total_seconds() * 1000 for e in entries),
            )
            for entries in zip(*rounds[1:], strict=True)
            if any(e.status == e.Status.EXECUTED for e in entries)
        )

    def serialized(self) -> bytes:
        """See run.engine.Serialized: what `Core.import_model` reads.

        Raises:
            BackendError: it cannot be exported, or the session is closed.
        """
        stream = io.BytesIO()
        with _mapped_errors():
            self._open().export_model(stream)
        return stream.getvalue()

    def close(self) -> None:
        """See Session.close."""
        with self._lock:
            self._compiled = self._model = None
            self._idle.clear()

    def _open(self) -> Any:
        compiled = self._compiled  # close() may come from another thread
        if compiled is None:
            raise BackendError("the session is closed", code="QD-BACKEND-CLOSED")
        return compiled

    @contextmanager
    def _request(self, compiled: Any) -> Iterator[Any]:
        """An infer request that no other thread uses."""
        with self._lock:
            request = self._idle.pop() if self._idle else None
        request = request or compiled.create_infer_request()
        try:
            yield request
        finally:
            with self._lock:
                if self._compiled is not None:
                    self._idle.append(request)


def saturates() -> bool:
    """Whether INT8 kernels use instructions of x86 that add up products in 16 bits."""
    try:
        able = os.environ.get("ONEDNN_MAX_CPU_ISA") or _CPU_FLAGS.read_text(encoding="utf-8")
    except OSError:
        return False
    return "avx" in able.lower() and re.search("vnni|amx|bf16|fp16|avx10", able.lower()) is None


_CPU_FLAGS = Path("/proc/cpuinfo")
_SATURATES = (
    "this processor has no VNNI instructions (or ONEDNN_MAX_CPU_ISA excludes them): OpenVINO's "
    "INT8 kernels add up pairs of products in 16 bits, where they saturate, and results may be far "
    "off. Judge the network on a processor that has them."
)


def _checked(inputs: Mapping[str, Any], feeds: Feeds) -> dict[str, Any]:
    """The feeds that the model takes. OpenVINO itself would silently convert other types."""
    for name, port in inputs.items():
        if name not in feeds:
            raise BackendError(f"no feed for input '{name}'", code="QD-BACKEND-FEED")
        given, shape = np.asarray(feeds[name]), port.get_partial_shape()
        wanted = np.dtype(port.get_element_type().to_dtype())
        if given.dtype != wanted:
            raise BackendError(
                f"input '{name}' takes {wanted}, not {given.dtype}", code="QD-BACKEND-FEED"
            )
        fits = len(shape) == given.ndim and all(
            axis.is_dynamic or axis.get_length() == size
            for axis, size in zip(shape, given.shape, strict=True)
        )
        if not fits:
            raise BackendError(
                f"input '{name}' has shape {list(given.shape)}; the model takes {shape}",
                code="QD-BACKEND-FEED",
            )
    # Not ascontiguousarray, which makes arrays of one axis of scalars.
    return {name: np.asarray(feeds[name], order="C") for name in inputs}


@dataclass(frozen=True)
class _Owners:
    """Whose operations OpenVINO executes.

    Attributes:
        nodes: the ONNX node by the names that OpenVINO may give to an operation of it: its own,
            and those of what it computes.
        products: the operators of the nodes that multiply matrices, by the node.
    """

    nodes: Mapping[str, str]
    products: Mapping[str, str]

    @classmethod
    def of(cls, proto: onnx.ModelProto) -> _Owners:
        named = [node for node in proto.graph.node if node.name]
        nodes = {t: node.name for node in named for t in node.output if t}
        products = {n.name: n.op_type for n in named if n.op_type in QUANTIZABLE_OPS}
        return cls(nodes | {node.name: node.name for node in named}, products)


def _layer(op: Any, owners: _Owners) -> EngineLayer | None:
    """An operation of the runtime model; None where nothing is executed for it."""
    facts = _facts(op)
    if facts["layerType"] in _UNPROCESSED:
        return None
    inputs: list[EngineTensor] = []
    constants: list[EngineTensor] = []
    for port in op.inputs():
        source = port.get_source_output()
        before = _facts(source.get_node())
        dtype = _precision(before, source.get_index())
        tensor = EngineTensor(source.get_node().get_friendly_name(), dtype)
        (constants if before["layerType"] == "Const" else inputs).append(tensor)
    name = op.get_friendly_name()
    outputs = tuple(
        EngineTensor(
            name if not k else f"{name}:{k}",
            _precision(facts, k),
            facts.get("outputLayouts", "").split(",")[0],
            _dims(port.get_partial_shape()),
        )
        for k, port in enumerate(op.outputs())
    )
    nodes = tuple(dict.fromkeys(_nodes(facts["originalLayersNames"].split(","), owners.nodes)))
    kind = facts["layerType"]
    product = next((owners.products[node] for node in nodes if node in owners.products), "")
    return EngineLayer(
        name=name,
        # Compiled from several operations; with a product among them, that is its work.
        layer_type=f"{kind} with {product}" if kind == "Subgraph" and product else kind,
        inputs=tuple(inputs),
        outputs=outputs,
        constants=tuple(constants),
        tactic=facts.get("primitiveType", ""),
        onnx_nodes=nodes,
        origin="QDQ" if kind == "FakeQuantize" else "",
    )


def _facts(op: Any) -> dict[str, str]:
    facts = {key: str(value.astype(str)) for key, value in op.get_rt_info().items()}
    return {"layerType": op.get_type_name(), "originalLayersNames": "", **facts}


def _precision(facts: Mapping[str, str], output: int) -> str:
    told = facts.get("outputPrecisions", "").split(",")
    word = told[output] if output < len(told) else told[0]
    return _DTYPES.get(word, word if word not in ("dynamic", "undefined") else "")


def _dims(shape: Any) -> tuple[int, ...] | None:
    if shape.rank.is_dynamic:
        return None
    return tuple(-1 if axis.is_dynamic else axis.get_length() for axis in shape)


def _nodes(parts: Sequence[str], owners: Mapping[str, str]) -> Iterator[str]:
    """The ONNX nodes that "a,b/WithoutBiases,c" names. A name may hold commas itself; OpenVINO
    appends parts to it when it splits an operation, and names operations of its own."""
    start = 0
    while start < len(parts):
        joined = ((end, ",".join(parts[start:end])) for end in range(len(parts), start, -1))
        known = next(((end, owners[name]) for end, name in joined if name in owners), None)
        if known is None:
            stem = next((x for x in _stems(parts[start]) if x in owners), None)
            known = (start + 1, owners[stem] if stem else "")
        start, node = known
        if node:
            yield node


def _stems(name: str) -> Iterator[str]:
    """`name` without what may have been appended to it."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _refused(reason: str) -> QdebugError:
    return ModelError(
        f"OpenVINO cannot load the model: {reason}",
        "Check the model with onnx.checker; express what OpenVINO does not support with other "
        "operators.",
        code="QD-MODEL-REFUSED",
    )


def _failed(reason: str) -> QdebugError:
    return BackendError(f"OpenVINO could not run the model: {reason}", code="QD-BACKEND-EXECUTE")


@contextmanager
def _mapped_errors(made: Callable[[str], QdebugError] = _failed) -> Iterator[None]:
    """The edge at which OpenVINO's exceptions become ours, `made` of their reason."""
    try:
        yield
    except Exception as error:
        foreign = type(error).__module__.startswith(("openvino", "onnx"))
        if not foreign and not isinstance(error, (RuntimeError, ValueError, TypeError)):
            raise
        raise made(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    """The reason in a message that starts with positions in OpenVINO's sources."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [x for x in lines if not x.startswith(("Exception from src/", "Check '"))]
    return " ".join((told or lines or ["no reason was given"])[:2])[:400]
