"""A plan written for other tools: the registry of targets, which imports nothing heavy.

Adding a target takes one file with a function (ExportSource, Path) -> Rendered, and one entry here.
The help of `qdebug export` and the table in the README are made from this registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, ClassVar

from qdebug.errors import PlanError
from qdebug.result import Result
from qdebug.wording import option

if TYPE_CHECKING:
    from qdebug.plan.export.source import ExportSource, Rendered


@dataclass(frozen=True)
class ExportTarget:
    """A tool to write a plan for.

    Attributes:
        suffix: of the default file's name, after the plan's.
        help: what is written, in one line.
        renderer: the function that renders it, as "module:function", imported when it is needed.
        on_file: the tool works on the user's own file, by the names in it.
        precisions: of layers, that it takes; () for whatever ONNX has operators for.
        why_not: of some others, why it does not take them.
    """

    suffix: str
    help: str
    renderer: str
    on_file: bool = False
    precisions: tuple[str, ...] = ("int8", "fp16", "fp32")
    why_not: Mapping[str, str] = field(default_factory=dict)

    def render(self, source: ExportSource, path: Path) -> Rendered:
        """The files for a plan; `path` is the main one.

        Raises:
            PlanError: the plan cannot be expressed for this target at all.
        """
        others = sorted(set(source.bound.precisions.values()).difference(self.precisions))
        if self.precisions and others:
            told = self.why_not.get(others[0], "this target has no such layers")
            raise PlanError(
                f"the plan has layers in {others[0].upper()}, and {told}: it takes "
                f"{', '.join(p.upper() for p in self.precisions)}",
                f"Export the model itself with {option('to', 'onnx')}.",
                code="QD-PLAN-EXPORT-FORMAT",
            )
        rendered: Rendered = resolve_name(f"{__name__}.{self.renderer}")(source, path)
        return rendered


@dataclass(frozen=True, repr=False)
class ExportResult(Result):
    """What was written for another tool, and what its user must know."""

    SCHEMA: ClassVar[str] = "qdebug.export/1"
    ROWS: ClassVar[str] = "written"

    target: str
    files: tuple[Path, ...]
    notes: tuple[str, ...]

    @property
    def written(self) -> list[dict[str, str]]:
        """The files as rows of a table."""
        return [{"file": str(file)} for file in self.files]

    def headline(self) -> str:
        """What was written, and for what."""
        return f"{', '.join(map(str, self.files))} for {self.target}"


_TENSORRT = ("w4", "w8", "int8", "fp8", "bf16", "fp16", "fp32")
_NO_INT16 = {"a16w8": "TensorRT multiplies no INT16"}

EXPORT_TARGETS: Mapping[str, ExportTarget] = {
    "onnx": ExportTarget(
        ".onnx",
        "the quantized model, with Q/DQ and Cast nodes",
        "models:render_onnx",
        precisions=(),
    ),
    "trtexec": ExportTarget(
        "_trtexec.sh",
        "shell script for trtexec and tensorrt_rtx",
        "trtexec:render_trtexec",
        precisions=_TENSORRT,
        why_not=_NO_INT16,
    ),
    "polygraphy": ExportTarget(
        "_polygraphy.py",
        "network postprocessing script for Polygraphy",
        "polygraphy_script:render_polygraphy",
        precisions=_TENSORRT,
        why_not=_NO_INT16,
    ),
    "python": ExportTarget(
        "_build.py",
        "script that builds the engine with TensorRT's Python API",
        "python_script:render_python",
        precisions=_TENSORRT,
        why_not=_NO_INT16,
    ),
    "modelopt": ExportTarget(
        "_modelopt.py",
        "script and exclude lists for NVIDIA's Model Optimizer",
        "modelopt_script:render_modelopt",
        on_file=True,
        precisions=("int8", "bf16", "fp16", "fp32"),
        why_not={
            **_NO_INT16,
            "fp8": "Model Optimizer (0.47) takes no ranges for FP8, where it reads no cache",
        },
    ),
    "ort": ExportTarget(
        "_ort.py",
        "script with arguments for ONNX Runtime's quantizer",
        "ort_quantization:render_ort",
        on_file=True,
        precisions=("int8", "a16w8", "fp16", "fp32"),
    ),
    "trt-cache": ExportTarget(
        ".cache",
        "TensorRT calibration cache (EntropyCalibration2)",
        "trt_cache:render_trt_cache",
        on_file=True,
    ),
}
"""The targets by name, in the order in which they are shown."""
