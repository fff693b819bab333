"""A plan for other tools: one file per target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from qdebug.plan.export import (
    modelopt_script,
    ort_quantization,
    polygraphy_script,
    python_script,
    trt_cache,
    trtexec,
)
from qdebug.plan.export.modelopt_script import render_modelopt
from qdebug.plan.export.onnx_model import render_onnx
from qdebug.plan.export.ort_quantization import render_ort
from qdebug.plan.export.polygraphy_script import render_polygraphy
from qdebug.plan.export.python_script import render_python
from qdebug.plan.export.source import Rendered, Source
from qdebug.plan.export.trt_cache import render_trt_cache
from qdebug.plan.export.trtexec import render_trtexec


@dataclass(frozen=True)
class Target:
    """A tool to write for.

    Attributes:
        suffix: of the default file's name, after the plan's.
        render: the files. Raises PlanError where the plan cannot be expressed at all.
    """

    suffix: str
    render: Callable[[Source, Path], Rendered]


TARGETS: Mapping[str, Target] = {
    "onnx": Target(".onnx", render_onnx),
    "trtexec": Target(trtexec.SUFFIX, render_trtexec),
    "polygraphy": Target(polygraphy_script.SUFFIX, render_polygraphy),
    "python": Target(python_script.SUFFIX, render_python),
    "modelopt": Target(modelopt_script.SUFFIX, render_modelopt),
    "ort": Target(ort_quantization.SUFFIX, render_ort),
    "trt-cache": Target(trt_cache.SUFFIX, render_trt_cache),
}
"""What `--to` accepts."""
