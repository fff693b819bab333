"""Options that several subcommands take, with one wording."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from qdebug.calibrators.registry import DEFAULT_METHOD, method_usage
from qdebug.measure.metrics import metric_usage
from qdebug.run.registry import backend_names

WHAT, GATE, WRITE, ENGINE = "What to run", "Verdict", "What to write", "TensorRT engine"

ModelOrPlan = Annotated[
    str | None,
    typer.Argument(help="The ONNX model; without, the one that --plan names.", show_default=False),
]
Inputs = Annotated[
    str | None,
    typer.Option(
        help="Samples to compare on: .npz, .npy, .h5, a directory of them, test_data_set_*, "
        "Polygraphy's inputs JSON, or script.py:function.",
        metavar="DATA",
        rich_help_panel=WHAT,
    ),
]
CandidatePrecision = Annotated[
    str | None, typer.Option(help="int8 (default), fp16 or fp32.", rich_help_panel=WHAT)
]
FallbackPrecision = Annotated[
    str | None,
    typer.Option(
        help="Precision of layers without an INT8 form: fp32 (default) or fp16.",
        rich_help_panel=WHAT,
    ),
]
Fp16KernelsOption = Annotated[
    str | None,
    typer.Option(
        "--fp16-kernels",
        help="How FP16 layers are simulated: as TensorRT's kernels compute them, which sum in FP16 "
        "(tensorrt, default), or with exact sums (exact).",
        rich_help_panel=WHAT,
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        help="Scales of weights: per-channel (default) or per-tensor.", rich_help_panel=WHAT
    ),
]
CalibData = Annotated[
    str | None,
    typer.Option(
        help="Samples to calibrate on; without, the compared ones.",
        metavar="DATA",
        rich_help_panel=WHAT,
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        help=f"Calibrator: {method_usage()}. Default: {DEFAULT_METHOD}.",
        rich_help_panel=WHAT,
    ),
]
Plan = Annotated[
    str | None,
    typer.Option(help="A precision plan.", metavar="FILE.yaml", rich_help_panel=WHAT),
]
Calibration = Annotated[
    str | None,
    typer.Option(
        help="Ranges to use: scales.yaml, a TensorRT cache or a plan.",
        metavar="FILE",
        rich_help_panel=WHAT,
    ),
]
NumSamples = Annotated[
    int | None, typer.Option(help="Use the first N samples.", min=1, rich_help_panel=WHAT)
]
CalibSamples = Annotated[
    int | None,
    typer.Option(help="Calibrate on the first N samples.", min=1, rich_help_panel=WHAT),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        help="Samples per execution where the batch axis is dynamic; else chosen by size.",
        min=1,
        rich_help_panel=WHAT,
    ),
]
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache",
        help="Run the model to calibrate even if an earlier pass over the same data was kept.",
        rich_help_panel=WHAT,
    ),
]
Backend = Annotated[
    str | None,
    typer.Option(
        help="Where the candidate runs (qdebug doctor lists what is installed): "
        f"{', '.join(backend_names())}; simulation is the default.",
        rich_help_panel=WHAT,
    ),
]
Typing = Annotated[
    str | None,
    typer.Option(
        help="How the builder is told the precisions: strong (default), by Q/DQ and Casts; "
        "TensorRT 10 only: implicit, by layer precisions and dynamic ranges, or implicit-cache, "
        "by layer precisions and a calibrator's cache.",
        rich_help_panel=ENGINE,
    ),
]
ComputeCapability = Annotated[
    list[str] | None,
    typer.Option(
        help="GPUs to build for, such as 8.9; several with commas. tensorrt-rtx only.",
        metavar="X.Y",
        rich_help_panel=ENGINE,
    ),
]
OptimizationLevel = Annotated[
    int | None,
    typer.Option(
        help="How long the builder looks for fast kernels, 0 to 5.", rich_help_panel=ENGINE
    ),
]
Workspace = Annotated[
    str | None,
    typer.Option(help="Scratch memory, such as 512M.", metavar="SIZE", rich_help_panel=ENGINE),
]
TacticSource = Annotated[
    list[str] | None,
    typer.Option(
        help="A trt.TacticSource to allow; repeatable. Without, the library's choice.",
        metavar="NAME",
        rich_help_panel=ENGINE,
    ),
]
TimingCache = Annotated[
    str | None,
    typer.Option(
        help="Kernel times to share between builds; without, in the cache folder. tensorrt only.",
        metavar="FILE",
        rich_help_panel=ENGINE,
    ),
]
Tf32 = Annotated[
    bool, typer.Option("--tf32", help="Let FP32 layers use TF32.", rich_help_panel=ENGINE)
]
Sparsity = Annotated[
    bool,
    typer.Option("--sparsity", help="Use kernels for 2:4 sparse weights.", rich_help_panel=ENGINE),
]
Plugin = Annotated[
    list[str] | None,
    typer.Option(
        help="A shared object with plugins; repeatable.", metavar="FILE", rich_help_panel=ENGINE
    ),
]
Refit = Annotated[
    bool,
    typer.Option(
        "--refit",
        help="Weights can be replaced later. Needs a GPU to build on.",
        rich_help_panel=ENGINE,
    ),
]
VersionCompatible = Annotated[
    bool,
    typer.Option(
        "--version-compatible",
        help="The engine runs under later versions of the library.",
        rich_help_panel=ENGINE,
    ),
]
SaveEngine = Annotated[
    str | None,
    typer.Option(
        help="Write the engine, as trtexec --loadEngine takes it.",
        metavar="FILE",
        rich_help_panel=ENGINE,
    ),
]
SaveLog = Annotated[
    str | None,
    typer.Option(
        help="Write the verbose log of its build, for `qdebug inspect`.",
        metavar="FILE",
        rich_help_panel=ENGINE,
    ),
]
Provider = Annotated[
    str | None,
    typer.Option(
        help="Execution provider of ONNX Runtime, such as CUDA; the CPU's by default.",
        metavar="NAME",
        rich_help_panel=ENGINE,
    ),
]
Capture = Annotated[
    str | None,
    typer.Option(
        help="How an engine's tensors are observed: outputs (default), debug or unfused.",
        rich_help_panel=ENGINE,
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        help=f"End-to-end accuracy: {metric_usage()}.",
        rich_help_panel=GATE,
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace existing files.")]
Json = Annotated[
    str | None,
    typer.Option(
        help="Write the result as JSON to a file, or to the standard output for '-'.",
        metavar="FILE|-",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(help="A run configuration; flags override it.", metavar="FILE.yaml"),
]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="Show no progress bars.")]
Verbose = Annotated[
    int,
    typer.Option(
        "-v", "--verbose", count=True, help="Say what is done; -vv adds tracebacks to errors."
    ),
]
MaxDrop = Annotated[
    str | None,
    typer.Option(
        help="Instead of --target: how far the metric may fall below FP32's.",
        metavar="X",
        rich_help_panel=GATE,
    ),
]
MaxRise = Annotated[
    str | None,
    typer.Option(
        help="The same for a metric where less is better: how far it may rise.",
        metavar="X",
        rich_help_panel=GATE,
    ),
]

_NO_SETTINGS = ("config", "json", "no_cache", "no_int8_kernels", "no_progress", "top", "verbose")
_RENAMED = {"tactic_source": "tactic_sources"}


def setting_flags(given: Mapping[str, object]) -> dict[str, object]:
    """The flags that a command was given, by the names of its settings; what was not is None.

    Args:
        given: every parameter of the command: its `locals()` before anything else is done.
    """
    flags: dict[str, object] = {"cache": False if given["no_cache"] else None}
    if given.get("no_int8_kernels"):
        flags["int8_kernels"] = False
    for name, value in given.items():
        if name not in _NO_SETTINGS:
            value = tuple(value) if isinstance(value, list) else value
            flags[_RENAMED.get(name, name)] = None if value is False else value
    return flags
