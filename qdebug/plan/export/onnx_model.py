"""The explicit ONNX model: Q/DQ for INT8, Cast for FP16. For ONNX Runtime, TensorRT 10 (strongly
typed) and 11, and TensorRT for RTX."""

from __future__ import annotations

from pathlib import Path

from qdebug.plan.export.source import Rendered, Source
from qdebug.plan.lower import lower


def render_onnx(source: Source, path: Path) -> Rendered:
    """The lowered model.

    Raises:
        PlanError: the plan cannot be lowered.
    """
    return Rendered({path: explicit_model(source)})


def explicit_model(source: Source) -> bytes:
    """The lowered model's bytes.

    Raises:
        PlanError: the plan cannot be lowered.
    """
    data: bytes = lower(source.bound).graph.proto.SerializeToString()
    return data
