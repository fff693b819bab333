"""`qdebug bisect`."""

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
    MaxDrop,
    MaxRise,
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

if TYPE_CHECKING:
    from rich.console import Console

    from qdebug.config.bisect import BisectSettings

_SEARCH = "Search"


def bisect_command(
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
    samples: NumSamples = None,
    calib_samples: CalibSamples = None,
    batch_size: BatchSize = None,
    backend: Backend = None,
    holdout: Annotated[
        str | None,
        typer.Option(
            help="Samples to verify the answer on; without, a share of --inputs.",
            metavar="DATA",
            rich_help_panel=WHAT,
        ),
    ] = None,
    holdout_share: Annotated[
        float | None,
        typer.Option(
            help="The share of --inputs to hold out (default 0.3).",
            min=0.01,
            max=0.9,
            rich_help_panel=WHAT,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help='What must hold, such as "output.cosine>=0.999" or "metric>=0.97".',
            metavar="CONDITION",
            rich_help_panel=GATE,
        ),
    ] = None,
    max_drop: MaxDrop = None,
    max_rise: MaxRise = None,
    metric: Metric = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="auto (default), rank, ddmin, prefix, suffix or exhaustive.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    pin_to: Annotated[
        str | None,
        typer.Option(
            help="Precision of pinned layers: fp16, fp32, or auto, which takes fp16 where it "
            "suffices (default).",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    pin: Annotated[
        list[str] | None,
        typer.Option(
            help="Always pin this layer: a name, a pattern with *, or op:TYPE; repeatable.",
            metavar="NAME",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    never_pin: Annotated[
        list[str] | None,
        typer.Option(help="Never pin it; repeatable.", metavar="NAME", rich_help_panel=_SEARCH),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            help="Count costs in milliseconds: the JSON of trtexec --exportProfile, or a run file "
            "of compare on a GPU.",
            metavar="FILE",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    profile_layers: Annotated[
        str | None,
        typer.Option(
            help="What the profiled layers are: the JSON of trtexec --exportLayerInfo, or the "
            "build log. Needed where their names do not tell.",
            metavar="FILE",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    max_evaluations: Annotated[
        int | None,
        typer.Option(help="Stop a search after N candidates.", min=1, rich_help_panel=_SEARCH),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            help="Stop searching after so many seconds.", min=0.001, rich_help_panel=_SEARCH
        ),
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option(
            help="Remember evaluations here; a search that was killed goes on. Without, in the "
            "cache folder.",
            metavar="FILE",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    memory_budget: Annotated[
        str | None,
        typer.Option(
            help="Memory for activations that candidates start from, such as 1G (default 512M).",
            metavar="SIZE",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    no_int8_kernels: Annotated[
        bool,
        typer.Option(
            "--no-int8-kernels",
            help="Search on literal Q/DQ too, not on ONNX Runtime's INT8 kernels.",
            rich_help_panel=_SEARCH,
        ),
    ] = False,
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
    select_point: Annotated[
        str | None,
        typer.Option(
            help="Take this point of the list of error against cost: its number, or knee.",
            metavar="POINT",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", help="Write the plan that was found.", metavar="precision.yaml"
        ),
    ] = None,
    force: Force = False,
    json: Json = None,
    config: Config = None,
    no_cache: NoCache = False,
    no_progress: NoProgress = False,
    verbose: Verbose = 0,
) -> int:
    """Find the cheapest layers to keep in higher precision, so that the target holds.

    Example: qdebug bisect model.onnx --inputs samples.npz --metric top1 --max-drop 0.01
    -o precision.yaml
    """
    flags = setting_flags(locals())
    return _run(flags, config, json=json, no_progress=no_progress, verbose=verbose)


def _run(
    flags: Mapping[str, object],
    config: Path | None,
    *,
    json: str | None,
    no_progress: bool,
    verbose: int,
) -> int:
    # Imported here: --help must not wait for the numeric packages.
    from qdebug.cli.common import emit, error_console, planned_model, resumable, set_verbosity
    from qdebug.config.bisect import BisectSettings
    from qdebug.config.resolve import resolve
    from qdebug.pipeline.bisect.command import bisect
    from qdebug.report.bisect import plan_text, print_bisect
    from qdebug.report.files import write_text
    from qdebug.report.progress import ProgressBars
    from qdebug.report.tables import print_written

    set_verbosity(verbose)
    settings = resolve(BisectSettings, "bisect", flags, config, planned_model)
    _check_files(settings, config, json)
    kept = settings.cache or settings.journal is not None
    with resumable(kept), ProgressBars(error_console(), enabled=not no_progress) as progress:
        result = bisect(settings, progress)
    plan_file = settings.output if result.found else None

    def show(console: Console) -> None:
        print_bisect(console, result, plan_file)
        if result.engine:
            print_written(console, settings.save_engine, settings.save_log)

    if plan_file:
        write_text(plan_file, plan_text(result), "--output")
    emit(json, result.to_dict, show)
    return 0 if result.passed else 1


def _check_files(settings: BisectSettings, config: Path | None, json: str | None) -> None:
    """Refuse what would overwrite an input, or a file unasked, before anything runs."""
    from qdebug.report.files import check_distinct, check_new, check_writable

    inputs = {
        "MODEL": settings.model,
        "--inputs": settings.inputs,
        "--calib-data": settings.calib_data,
        "--holdout": settings.holdout,
        "--plan": settings.plan,
        "--calibration": settings.calibration,
        "--profile": settings.profile,
        "--profile-layers": settings.profile_layers,
        "--config": str(config) if config else None,
    }
    json_file = None if json == "-" else json
    new = {
        "--output": settings.output,
        "--save-engine": settings.save_engine,
        "--save-log": settings.save_log,
    }
    check_distinct({**new, "--json": json_file, "--journal": settings.journal}, inputs)
    for flag, path in new.items():
        if path:
            check_new(path, flag, force=settings.force)
    for flag, path in (("--json", json_file), ("--journal", settings.journal)):
        if path:
            check_writable(path, flag)
