"""`qdebug compare`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qdebug.cli.options import (
    GATE,
    WHAT,
    Backend,
    BatchSize,
    CalibData,
    Calibration,
    CalibSamples,
    CandidatePrecision,
    Capture,
    ComputeCapability,
    Config,
    FallbackPrecision,
    Force,
    Fp16KernelsOption,
    Inputs,
    Json,
    Method,
    Metric,
    ModelOrPlan,
    NoCache,
    NoProgress,
    NumSamples,
    OptimizationLevel,
    Plan,
    Plugin,
    Provider,
    Refit,
    SaveEngine,
    SaveLog,
    Sparsity,
    TacticSource,
    Tf32,
    TimingCache,
    Typing,
    Verbose,
    VersionCompatible,
    Weights,
    Workspace,
    setting_flags,
)
from qdebug.measure.metrics import gate_usage

if TYPE_CHECKING:
    from rich.console import Console

    from qdebug.config.compare import CompareSettings

_KEEP = "What to keep"


def compare_command(
    model: ModelOrPlan = None,
    inputs: Inputs = None,
    precision: CandidatePrecision = None,
    fallback_precision: FallbackPrecision = None,
    fp16_kernels: Fp16KernelsOption = None,
    weights: Weights = None,
    calib_data: CalibData = None,
    method: Method = None,
    plan: Plan = None,
    calibration: Calibration = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="The FP32 model of one that carries Q/DQ, or a run file whose reference "
            "activations are reused.",
            metavar="FILE",
            rich_help_panel=WHAT,
        ),
    ] = None,
    backend: Backend = None,
    samples: NumSamples = None,
    calib_samples: CalibSamples = None,
    batch_size: BatchSize = None,
    local_samples: Annotated[
        int | None,
        typer.Option(
            help="Measure local errors on N of the samples (default 16), rounded up to whole "
            "batches, of which at least two.",
            min=1,
            rich_help_panel=WHAT,
        ),
    ] = None,
    memory_budget: Annotated[
        str | None,
        typer.Option(
            help="Memory for captured tensors, such as 512M (default 2G).",
            metavar="SIZE",
            rich_help_panel=WHAT,
        ),
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            help='A condition that must hold, such as "output.cosine>=0.99", '
            f'"layer.sqnr_db>=20" or "metric>=0.95"; repeatable. Metrics: {gate_usage()}.',
            metavar="CONDITION",
            rich_help_panel=GATE,
        ),
    ] = None,
    metric: Metric = None,
    typing: Typing = None,
    compute_capability: ComputeCapability = None,
    optimization_level: OptimizationLevel = None,
    workspace: Workspace = None,
    tactic_source: TacticSource = None,
    timing_cache: TimingCache = None,
    tf32: Tf32 = False,
    sparsity: Sparsity = False,
    plugin: Plugin = None,
    refit: Refit = False,
    version_compatible: VersionCompatible = False,
    capture: Capture = None,
    provider: Provider = None,
    save_engine: SaveEngine = None,
    save_log: SaveLog = None,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            help="Write a run file (HDF5): results, plan, ranges and activations.",
            metavar="run.h5",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            help="Activations to keep: all, worst:N samples (default worst:2), or none.",
            rich_help_panel=_KEEP,
        ),
    ] = None,
    keep_dtype: Annotated[
        str | None,
        typer.Option(help="Keep them as float32 (default) or float16.", rich_help_panel=_KEEP),
    ] = None,
    save_plan: Annotated[
        str | None,
        typer.Option(
            help="Write the plan that was run, ranges included.",
            metavar="FILE.yaml",
            rich_help_panel=_KEEP,
        ),
    ] = None,
    force: Force = False,
    json: Json = None,
    top: Annotated[int, typer.Option(help="Layers to list.", min=1, rich_help_panel="Output")] = 10,
    config: Config = None,
    no_cache: NoCache = False,
    no_progress: NoProgress = False,
    verbose: Verbose = 0,
) -> int:
    """Compare a quantized or FP16 model with its FP32 reference, tensor by tensor.

    Example: qdebug compare model.onnx --inputs samples.npz --calib-data calib.npz -o run.h5
    """
    flags = setting_flags(locals())
    return _run(flags, config, json=json, top=top, no_progress=no_progress, verbose=verbose)


def _run(
    flags: Mapping[str, object],
    config: Path | None,
    *,
    json: str | None,
    top: int,
    no_progress: bool,
    verbose: int,
) -> int:
    # Imported here: --help must not wait for the numeric packages.
    from qdebug.cli.common import emit, error_console, planned_model, set_verbosity
    from qdebug.config.compare import CompareSettings
    from qdebug.config.resolve import resolve
    from qdebug.pipeline.compare.command import compare
    from qdebug.report.progress import ProgressBars
    from qdebug.report.tables import print_written
    from qdebug.report.terminal import print_compare
    from qdebug.report.view import compare_view

    set_verbosity(verbose)
    settings = resolve(CompareSettings, "compare", flags, config, planned_model)
    _check_targets(settings, config, json)
    with ProgressBars(error_console(), enabled=not no_progress) as progress:
        outcome = compare(settings, progress)

    def show(console: Console) -> None:
        print_compare(console, compare_view(outcome.result, top), outcome.run_file)
        print_written(console, settings.save_plan, settings.save_engine, settings.save_log)

    emit(json, outcome.result.to_dict, show)
    return 0 if outcome.result.passed else 1


def _check_targets(settings: CompareSettings, config: Path | None, json: str | None) -> None:
    from qdebug.report.files import check_distinct, check_writable

    target = None if json == "-" else json
    outputs = {
        "--output": settings.output,
        "--save-plan": settings.save_plan,
        "--save-engine": settings.save_engine,
        "--save-log": settings.save_log,
        "--json": target,
    }
    # --reference may name the run file that is replaced: its reference is reused.
    reference = settings.reference if settings.reference != settings.output else None
    check_distinct(
        outputs,
        {
            "MODEL": settings.model,
            "--inputs": settings.inputs,
            "--calib-data": settings.calib_data,
            "--plan": settings.plan,
            "--calibration": settings.calibration,
            "--reference": reference,
            "--config": str(config) if config else None,
        },
    )
    if target:
        check_writable(target, "--json")
