"""ONNX Runtime on the CPU: the reference, and the simulation of every quantized model."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from qdebug.backends.bf16 import in_fp32
from qdebug.backends.capture import encode_marked
from qdebug.backends.fp16_emulation.rounding import keep_fp16_rounding
from qdebug.backends.options import DEFAULT_SESSIONS, SessionSettings, session_options
from qdebug.errors import BackendError, ModelError, is_about_memory, out_of_memory
from qdebug.network.weights import external_bytes
from qdebug.types import Array, Feeds, Fp16Kernels, Skipped, Tensors
from qdebug.wording import option

_BF16 = "tensor(bfloat16)"
_NUMPY_TYPES = {
    _BF16: np.float32,  # see _array_of
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(int16)": np.int16,
    "tensor(uint16)": np.uint16,
    "tensor(int32)": np.int32,
    "tensor(uint32)": np.uint32,
    "tensor(int64)": np.int64,
    "tensor(uint64)": np.uint64,
    "tensor(bool)": np.bool_,
}


class SimulationBackend:
    """Executes models with Q/DQ, in FP16 and in BF16 as written.

    Graph optimizations are on, for speed, except those that change what is computed: the fusion of
    Q/DQ into INT8 kernels (it requantizes with other rounding), the removal of FP16 rounding
    between operators that have no FP16 kernel on the CPU (it would hide an overflow to Inf), and
    the fusion of layer normalizations, parts of which may be in FP16.
    """

    name = "simulation"

    def __init__(
        self,
        threads: int = 0,
        fp16_kernels: Fp16Kernels = Fp16Kernels.EXACT,
        sessions: SessionSettings = DEFAULT_SESSIONS,
    ) -> None:
        """`threads` is the number of threads within one operator; 0 lets the runtime choose."""
        self._threads = threads
        self._fp16_kernels = fp16_kernels
        self._sessions = sessions

    @property
    def results_key(self) -> str:
        """Equal for simulations that give the same."""
        return f"{self.name} {self._fp16_kernels} {self._sessions.operators_digest}"

    def open(self, proto: onnx.ModelProto, capture: Sequence[str]) -> SimulationSession:
        """See Backend.open."""
        with loading():
            rounded = in_fp32(keep_fp16_rounding(proto, self._fp16_kernels), self._fp16_kernels)
            marked, skipped = encode_marked(rounded, capture)
            return SimulationSession(
                marked,
                self._threads,
                skipped,
                mapped_bytes=external_bytes(rounded),
                operators=self._sessions.operators,
            )


class OrtSession:
    """See Session. An InferenceSession of ONNX Runtime."""

    def __init__(self, session: Any, skipped: Sequence[Skipped] = ()) -> None:
        """Becomes the owner of `session`, in which `skipped` are not observed."""
        self._session = session
        session._model_bytes = None  # kept for a fallback, which is off: all the weights
        self._running: set[Any] = set()
        self._inputs = frozenset(i.name for i in session.get_inputs())
        self._dtypes: dict[str, np.dtype[np.generic]] = {}
        not_numpy = []
        outputs = session.get_outputs()
        self._in_bf16 = any(output.type == _BF16 for output in outputs)
        for output in outputs:
            if output.type in _NUMPY_TYPES:
                self._dtypes[output.name] = np.dtype(_NUMPY_TYPES[output.type])
            else:
                not_numpy.append(Skipped(output.name, f"numpy has no {output.type}"))
        self._skipped = (*skipped, *not_numpy)

    @property
    def dtypes(self) -> Mapping[str, np.dtype[np.generic]]:
        """See Session."""
        return self._dtypes

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """See Session."""
        return self._skipped

    def run(self, feeds: Feeds) -> Tensors:
        """See Session.run."""
        session = self._session  # close() may come from another thread
        if session is None:
            raise BackendError("the session is closed", code="QD-BACKEND-CLOSED")
        names = list(self._dtypes)
        if not names:  # ONNX Runtime would give all outputs, which no array may be
            return {}
        with running():
            given, options = self._given(feeds), _run_options()
            self._running.add(options)
            try:
                if self._in_bf16:
                    values = session.run_with_ort_values(names, _ort_values(given), options)
                    arrays = [_array_of(value) for value in values]
                else:
                    arrays = session.run(names, given, options)
            finally:
                self._running.discard(options)
            return dict(zip(names, arrays, strict=True))

    def interrupt(self) -> None:
        """End what it executes now, which then raises BackendError."""
        for options in list(self._running):
            options.terminate = True

    def _given(self, feeds: Feeds) -> dict[str, Any]:
        """Those of `feeds` that are inputs, as ONNX Runtime takes them; they read their memory."""
        return {
            name: _ort_value(array) if array.dtype.kind == "V" else array
            for name, array in feeds.items()
            if name in self._inputs
        }

    def close(self) -> None:
        """See Session.close."""
        self._session = None


def _run_options() -> Any:
    import onnxruntime as ort

    return ort.RunOptions()


def _ort_values(feeds: Mapping[str, Any]) -> dict[str, Any]:
    import onnxruntime as ort

    return {
        name: ort.OrtValue.ortvalue_from_numpy(value) if isinstance(value, np.ndarray) else value
        for name, value in feeds.items()
    }


def _array_of(value: Any) -> Array:
    """An OrtValue in the memory of the CPU as an array; of one in BF16, which numpy lacks, its
    values in FP32."""
    if value.data_type() != _BF16:
        array: Array = value.numpy()
        return array
    shape = value.shape()
    codes = (ctypes.c_uint16 * math.prod(shape)).from_address(value.data_ptr())
    return np.frombuffer(codes, ml_dtypes.bfloat16).reshape(shape).astype(np.float32)


def _ort_value(array: Array) -> Any:
    """An array of a type that ml_dtypes adds to numpy, such as bfloat16, as an OrtValue that reads
    its memory."""
    import onnxruntime as ort

    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    raw = array.view(f"u{array.dtype.itemsize}")
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, kind)


_DISABLED = [
    *("EliminateIdentity", "LayerNormFusionL1", "LayerNormFusionL2"),
    *("SimplifiedLayerNormFusion", "ConvAddActivationFusion"),
    *("ReluQuantRewrite", "ClipQuantRewrite"),
]
"""Optimizers that are off. Of a layer normalization that is written out, in FP16 here and in FP32
there, the fusions make an invalid model, or one that rounds elsewhere than planned. That of Conv,
Add and Relu, where convolutions are not reordered first, loses the Conv's output even where it is
one of the model's (seen with 1.32). ReluQuantRewrite drops a Relu before any QuantizeLinear of INT4
or FP8, whose codes do not end at 0, and ClipQuantRewrite fails on a Clip before one of FP8 (with
1.32, too)."""


MAPPED_ONLY_BYTES = 48 << 20
"""From this size of the mapped weights on, sessions do not pack weights for Gemm and MatMul: a
session opens in a fraction of the time, and executes about as fast. Nor is memory kept for the next
execution, which takes 7% longer where all tensors are outputs (measured): kept, it grew to several
times what is in use."""


class SimulationSession(OrtSession):
    """See SimulationBackend."""

    def __init__(
        self,
        model: bytes,
        threads: int,
        skipped: Sequence[Skipped] = (),
        constants: Mapping[str, Any] | None = None,
        *,
        mapped_bytes: int = 0,
        operators: Sequence[Path] = (),
    ) -> None:
        """`constants` are the OrtValues that take the place of external data in `model`.
        `mapped_bytes` of its weights lie in files. `operators` are libraries of custom ones."""
        import onnxruntime as ort

        options = session_options(operators)
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if constants:
            options.add_external_initializers(list(constants), list(constants.values()))
        if mapped_bytes >= MAPPED_ONLY_BYTES:
            options.add_session_config_entry("session.disable_prepacking", "1")
            options.enable_cpu_mem_arena = False
        session = ort.InferenceSession(
            model,
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=_DISABLED,
            enable_fallback=0,  # it would print and try the CPU again
        )
        super().__init__(session, skipped)


def loading() -> AbstractContextManager[None]:
    """Maps what ONNX Runtime raises while a session is created to a ModelError or BackendError."""
    return _mapped_errors(_LOAD)


def running() -> AbstractContextManager[None]:
    """Maps what ONNX Runtime raises while it executes a model to a BackendError."""
    return _mapped_errors("run the model")


@contextmanager
def _mapped_errors(action: str) -> Iterator[None]:
    """The one edge at which ONNX Runtime's exceptions become ours."""
    try:
        yield
    except Exception as error:
        if not _is_foreign(error):
            raise
        message = _shorten(str(error))
        if is_about_memory(error):
            raise out_of_memory(f"ONNX Runtime could not {action}: {message}") from error
        if action == _LOAD and type(error).__name__ not in _MACHINE_TROUBLE:
            unknown = "is not a registered function/op" in message
            hint = _NO_OPERATOR.format(option("custom_op_library")) if unknown else _HINT
            text = f"ONNX Runtime cannot {action}: {message}"
            raise ModelError(text, hint, code="QD-MODEL-REFUSED") from error
        text = f"ONNX Runtime could not {action}: {message}"
        raise BackendError(text, code="QD-BACKEND-EXECUTE") from error


_LOAD = "load the model"
_MACHINE_TROUBLE = frozenset({"EngineError", "EPFail", "RuntimeException"})
"""What is not the model's fault: no memory, no device."""

_NO_OPERATOR = (
    "It executes the FP32 reference and the simulation, and has no such operator: give the library "
    "that has it with {}, write it with standard operators, or cut the model there."
)
_HINT = "Check the model with onnx.checker; an opset ONNX Runtime does not know must be lowered."


def _is_foreign(error: Exception) -> bool:
    module = type(error).__module__
    return module.startswith("onnxruntime") or isinstance(error, (RuntimeError, ValueError))


def _shorten(message: str) -> str:
    """The last part of a message that starts with codes and source positions."""
    text = " ".join(message.split())
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = re.sub(r"\S+\.(cc|h|cpp):\d+ \S+ ?", "", text)
    return text[:400]
