"""ONNX Runtime on the CPU: the reference, and the simulation of every quantized model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import onnx

from qdebug.errors import BackendError, ModelError
from qdebug.model.weights import external_bytes
from qdebug.run.capture import encode_marked
from qdebug.run.fp16_emulation.rounding import keep_fp16_rounding
from qdebug.run.options import session_options
from qdebug.types import Feeds, Fp16Kernels, Skipped, Tensors
from qdebug.wording import option

_NUMPY_TYPES = {
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
    """Executes Q/DQ and FP16 models as written.

    Graph optimizations are on, for speed, except those that change what is computed: the fusion of
    Q/DQ into INT8 kernels (it requantizes with other rounding), the removal of FP16 rounding
    between operators that have no FP16 kernel on the CPU (it would hide an overflow to Inf), and
    the fusion of layer normalizations, parts of which may be in FP16.
    """

    name = "simulation"

    def __init__(self, threads: int = 0, fp16_kernels: Fp16Kernels = Fp16Kernels.EXACT) -> None:
        """`threads` is the number of threads within one operator; 0 lets the runtime choose."""
        self._threads = threads
        self._fp16_kernels = fp16_kernels

    def open(self, proto: onnx.ModelProto, capture: Sequence[str]) -> SimulationSession:
        """See Backend.open."""
        with loading():
            rounded = keep_fp16_rounding(proto, self._fp16_kernels)
            marked, skipped = encode_marked(rounded, capture)
            mapped = external_bytes(rounded)
            return SimulationSession(marked, self._threads, skipped, mapped_bytes=mapped)


class OrtSession:
    """See Session. An InferenceSession of ONNX Runtime."""

    def __init__(self, session: Any, skipped: Sequence[Skipped] = ()) -> None:
        """Becomes the owner of `session`, in which `skipped` are not observed."""
        self._session = session
        session._model_bytes = None  # kept for a fallback, which is off: all the weights
        self._inputs = frozenset(i.name for i in session.get_inputs())
        self._dtypes: dict[str, np.dtype[np.generic]] = {}
        not_numpy = []
        for output in session.get_outputs():
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
        used = {name: array for name, array in feeds.items() if name in self._inputs}
        with running():
            return dict(zip(names, session.run(names, used), strict=True))

    def close(self) -> None:
        """See Session.close."""
        self._session = None


_DISABLED = [
    *("EliminateIdentity", "LayerNormFusionL1", "LayerNormFusionL2"),
    "SimplifiedLayerNormFusion",
]
"""Optimizers that are off. Of a layer normalization that is written out, in FP16 here and in FP32
there, the fusions make an invalid model, or one that rounds elsewhere than planned."""


_MAPPED_ONLY_BYTES = 48 << 20
"""From this size of the mapped weights on, they are not packed for Gemm and MatMul, and INT8 codes
not dequantized once and for all: a session opens in a fraction of the time, takes no memory for
them, and executes about as fast. Nor is memory kept for the next execution, which takes 7% longer
where all tensors are outputs (measured): kept, it grew to several times what is in use."""
_AS_STORED_BYTES = 256 << 20
"""From this size on, weights of Conv are not reordered either, which costs some speed."""


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
    ) -> None:
        """`constants` are the OrtValues that take the place of external data in `model`, of which
        `mapped_bytes` lie in files: of many, the session keeps no copies."""
        import onnxruntime as ort

        options = session_options()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if constants:
            options.add_external_initializers(list(constants), list(constants.values()))
        disabled = list(_DISABLED)
        if mapped_bytes >= _MAPPED_ONLY_BYTES:
            options.add_session_config_entry("session.disable_prepacking", "1")
            options.enable_cpu_mem_arena = False
            disabled.append("ConstantFolding")
        if mapped_bytes >= _AS_STORED_BYTES:
            disabled.append("NchwcTransformer")
        session = ort.InferenceSession(
            model,
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=disabled,
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
