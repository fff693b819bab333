"""The explicit ONNX model: Q/DQ for INT8, Cast for FP16. For ONNX Runtime, TensorRT 10 (strongly
typed) and 11, and TensorRT for RTX."""

from __future__ import annotations

from pathlib import Path

from qdebug.errors import StoreError
from qdebug.plan.lower import lower
from qdebug.plan.plan import BoundPlan


def write_onnx(bound: BoundPlan, path: Path) -> None:
    """Lower `bound` and write the model to `path`, whole or not at all.

    Raises:
        PlanError: the plan cannot be lowered.
        StoreError: the file cannot be written.
    """
    data = lower(bound).graph.proto.SerializeToString()
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StoreError(
            f"{path}: cannot be written: {error.strerror}", "Give another file with -o."
        ) from error
