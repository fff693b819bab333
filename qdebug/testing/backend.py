"""A backend without a runtime: the rest of qdebug is tested with it.

By default it executes models with ONNX's reference evaluator, slowly and literally. Give it a
function in place of that to answer with canned arrays, to add errors, or to fail.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
from onnx import checker, defs, helper, shape_inference
from onnx.reference import ReferenceEvaluator

from qdebug.backends.capture import mark_outputs
from qdebug.errors import BackendError, ModelError
from qdebug.network.convert import convert_opset, reason_in
from qdebug.network.graph import opset_of
from qdebug.types import Feeds, Skipped, Tensors

_EVALUATED_OPSET = 19

Compute = Callable[[Feeds, Sequence[str]], Tensors]
"""Given feeds and names of tensors, those tensors."""

Loader = Callable[[onnx.ModelProto], Compute]
"""Makes a model, its outputs marked, executable."""


def reference_compute(proto: onnx.ModelProto) -> Compute:
    """Execute `proto` with onnx.reference, which knows DequantizeLinear from opset 19 on."""
    copied = deepcopy(proto)
    evaluator = ReferenceEvaluator(convert_opset(Path("the model"), copied, _EVALUATED_OPSET))
    declared = {v.name for v in proto.graph.input}
    lock = threading.Lock()  # nothing promises that an evaluator may be shared

    def compute(feeds: Feeds, names: Sequence[str]) -> Tensors:
        absent = declared - feeds.keys()
        if absent:
            raise ValueError(f"no feed for {sorted(absent)}")
        with lock:
            values = evaluator.run(list(names), {n: feeds[n] for n in declared})
        return {n: np.asarray(v) for n, v in zip(names, values, strict=True)}

    return compute


class FakeBackend:
    """See Backend.

    Attributes:
        captures: what each call of `open` asked for, in order.
        runs: executions so far, over all sessions.
    """

    name = "fake"

    def __init__(self, load: Loader = reference_compute) -> None:
        self._load = load
        self._lock = threading.Lock()
        self.captures: list[tuple[str, ...]] = []
        self.runs = 0

    def open(self, proto: onnx.ModelProto, capture: Sequence[str]) -> FakeSession:
        """See Backend.open."""
        marked, skipped = mark_outputs(proto, capture)
        self.captures.append(tuple(capture))
        try:
            typed = shape_inference.infer_shapes(marked, strict_mode=True)
            checker.check_model(typed)
            if opset_of(typed) > defs.onnx_opset_version():
                raise ValueError(f"opset {opset_of(typed)} is not known")
            compute = self._load(typed)
            types = _types(typed)
        except Exception as error:  # a fake cannot run out of anything: the model is at fault
            message = f"the fake backend cannot load the model: {reason_in(error)}"
            raise ModelError(message, code="QD-MODEL-REFUSED") from error
        return FakeSession(compute, types, skipped, self._count)

    def _count(self) -> None:
        with self._lock:
            self.runs += 1


class FakeSession:
    """See Session."""

    def __init__(
        self,
        compute: Compute,
        types: Mapping[str, np.dtype[np.generic] | None],
        skipped: Sequence[Skipped],
        count: Callable[[], None],
    ) -> None:
        self._compute: Compute | None = compute
        self._count = count
        self.dtypes = {n: t for n, t in types.items() if t is not None}
        untyped = (n for n, t in types.items() if t is None)
        self.skipped = (*skipped, *(Skipped(n, "its type cannot be inferred") for n in untyped))

    def run(self, feeds: Feeds) -> Tensors:
        """See Session.run."""
        if self._compute is None:
            raise BackendError("the session is closed", code="QD-BACKEND-CLOSED")
        self._count()
        try:
            return self._compute(feeds, list(self.dtypes))
        except Exception as error:
            message = f"the fake backend could not run the model: {reason_in(error)}"
            raise BackendError(message, code="QD-BACKEND-EXECUTE") from error

    def close(self) -> None:
        """See Session.close."""
        self._compute = None


def _types(proto: onnx.ModelProto) -> dict[str, np.dtype[np.generic] | None]:
    kinds = {v.name: v.type.tensor_type.elem_type for v in proto.graph.output}
    return {
        name: np.dtype(helper.tensor_dtype_to_np_dtype(kind)) if kind else None
        for name, kind in kinds.items()
    }
