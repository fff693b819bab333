"""`qdebug sweep`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qdebug.cli.options import (
    GATE,
    WHAT,
    BatchSize,
    CalibData,
    Calibration,
    CalibSamples,
    Config,
    Force,
    Inputs,
    Json,
    Method,
    Metric,
    ModelOrPlan,
    NoProgress,
    NumSamples,
    Plugin,
    Provider,
    TimingCache,
    Verbose,
    Workspace,
)

if TYPE_CHECKING:
    from rich.console import Console

    from qdebug.config.sweep import SweepSettings

_AXES = "What to try (several with commas)"


def sweep_command(
    model: ModelOrPlan = None,
    inputs: Inputs = None,
    backend: Annotated[
        str | None,
        typer.Option(help="tensorrt-rtx (default) or tensorrt.", rich_help_panel=WHAT),
    ] = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(
            help="int8 (default), fp16, fp32 and int8+fp16: FP16 where there is no INT8 form.",
            rich_help_panel=_AXES,
        ),
    ] = None,
    plan: Annotated[
        list[str] | None,
        typer.Option(
            help="A precision plan to try beside the precisions; repeatable.",
            metavar="FILE.yaml",
            rich_help_panel=_AXES,
        ),
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(
            help="Scales of weights: per-channel (default), per-tensor.", rich_help_panel=_AXES
        ),
    ] = None,
    optimization_level: Annotated[
        list[str] | None,
        typer.Option(
            help="How long the builder looks for fast kernels: 0 to 5, default.",
            rich_help_panel=_AXES,
        ),
    ] = None,
    tactic_sources: Annotated[
        list[str] | None,
        typer.Option(
            help="default, none, or names of trt.TacticSource joined by '+'.",
            rich_help_panel=_AXES,
        ),
    ] = None,
    typing: Annotated[
        list[str] | None,
        typer.Option(
            help="How the builder is told the precisions: strong (default); in TensorRT 10 also "
            "implicit and implicit-cache.",
            rich_help_panel=_AXES,
        ),
    ] = None,
    tf32: Annotated[
        list[str] | None,
        typer.Option(help="off (default), on: let FP32 layers use TF32.", rich_help_panel=_AXES),
    ] = None,
    sparsity: Annotated[
        list[str] | None,
        typer.Option(
            help="off (default), on: kernels for 2:4 sparse weights.", rich_help_panel=_AXES
        ),
    ] = None,
    refit: Annotated[
        list[str] | None,
        typer.Option(
            help="off (default), on: weights can be replaced later.", rich_help_panel=_AXES
        ),
    ] = None,
    version_compatible: Annotated[
        list[str] | None,
        typer.Option(
            help="off (default), on: the engine runs under later versions of the library.",
            rich_help_panel=_AXES,
        ),
    ] = None,
    compute_capability: Annotated[
        list[str] | None,
        typer.Option(
            help="GPUs to build for, such as 8.9; one engine for several with '+'. tensorrt-rtx "
            "only.",
            metavar="X.Y",
            rich_help_panel=_AXES,
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="The FP32 model of one that carries Q/DQ; without, itself without them.",
            metavar="FILE.onnx",
            rich_help_panel=WHAT,
        ),
    ] = None,
    calib_data: CalibData = None,
    method: Method = None,
    calibration: Calibration = None,
    samples: NumSamples = None,
    calib_samples: CalibSamples = None,
    batch_size: BatchSize = None,
    workspace: Workspace = None,
    timing_cache: TimingCache = None,
    plugin: Plugin = None,
    provider: Provider = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            help='Exit 1 unless a combination meets it, such as "output.cosine>=0.99", '
            '"metric>=0.95" or "int8_share>=0.8"; repeatable.',
            metavar="CONDITION",
            rich_help_panel=GATE,
        ),
    ] = None,
    metric: Metric = None,
    save_engines: Annotated[
        str | None,
        typer.Option(
            help="Write every engine and the log of its build here, by its row in the table: "
            "1.engine, 1.log, …",
            metavar="DIR",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", help="Write all figures as CSV.", metavar="FILE.csv"),
    ] = None,
    force: Force = False,
    json: Json = None,
    config: Config = None,
    no_cache: Annotated[
        bool,
        typer.Option(
            "--no-cache",
            help="Calibrate, build and measure anew, whatever was kept.",
            rich_help_panel=WHAT,
        ),
    ] = False,
    no_progress: NoProgress = False,
    verbose: Verbose = 0,
) -> int:
    """Precisions and builder settings against error, size, build time and latency.

    What was built and measured is kept: a sweep that was ended goes on where it was.

    Example: qdebug sweep model.onnx --inputs samples.npz --precision int8,fp16
    --optimization-level 0,3,5
    """
    axes = {
        "precision": precision,
        "weights": weights,
        "optimization_level": optimization_level,
        "tactic_sources": tactic_sources,
        "typing": typing,
        "tf32": tf32,
        "sparsity": sparsity,
        "refit": refit,
        "version_compatible": version_compatible,
        "compute_capability": compute_capability,
    }
    flags = {
        "model": model,
        "inputs": inputs,
        "backend": backend,
        "plan": tuple(plan or ()),
        "reference": reference,
        "calib_data": calib_data,
        "method": method,
        "calibration": calibration,
        "samples": samples,
        "calib_samples": calib_samples,
        "batch_size": batch_size,
        "workspace": workspace,
        "timing_cache": timing_cache,
        "plugin": tuple(plugin or ()),
        "provider": provider,
        "fail_on": tuple(fail_on or ()),
        "metric": metric,
        "save_engines": save_engines,
        "output": output,
        "force": force or None,
        "cache": False if no_cache else None,
    }
    return _run({**flags, **_axes(axes)}, config, json, not no_progress, verbose)


def _axes(given: Mapping[str, list[str] | None]) -> dict[str, tuple[str, ...]]:
    """The values of the axes that were given.

    Raises:
        UsageError: one has no value.
    """
    from qdebug.config.resolve import flag_of, values_of
    from qdebug.errors import UsageError

    found = {name: values_of(values) for name, values in given.items() if values is not None}
    for name, values in found.items():
        if not values:
            raise UsageError(
                f"{flag_of(name)} has no value, so there is nothing to sweep",
                f"Give one or more with commas, or leave {flag_of(name)} out.",
            )
    return found


def _run(
    flags: Mapping[str, object],
    config: Path | None,
    json: str | None,
    show_progress: bool,
    verbose: int,
) -> int:
    # Imported here: --help must not wait for the numeric packages.
    from qdebug.cli.common import emit, error_console, planned_model, resumable, set_verbosity
    from qdebug.config.resolve import resolve
    from qdebug.config.sweep import SweepSettings
    from qdebug.pipeline.sweep.command import sweep
    from qdebug.report.files import write_text
    from qdebug.report.progress import ProgressBars
    from qdebug.report.sweep import print_engines, print_sweep
    from qdebug.report.sweep_json import sweep_to_csv
    from qdebug.report.tables import print_written

    set_verbosity(verbose)
    settings = resolve(SweepSettings, "sweep", flags, config, planned_model)
    _check_targets(settings, config, json)
    with (
        resumable(settings.cache),
        ProgressBars(error_console(), enabled=show_progress) as progress,
    ):
        result = sweep(settings, progress)
    if settings.output:
        write_text(settings.output, sweep_to_csv(result), "--output")
    folder = settings.save_engines if result.built else None

    def show(console: Console) -> None:
        print_sweep(console, result, detailed=bool(verbose))
        print_written(console, settings.output)
        if folder:
            print_engines(console, folder)

    emit(json, result.to_dict, show)
    if not result.built:
        return 3
    return 0 if result.passed else 1


def _check_targets(settings: SweepSettings, config: Path | None, json: str | None) -> None:
    from qdebug.report.files import check_distinct, check_writable

    target = None if json == "-" else json
    plans = {f"--plan ({n})": plan for n, plan in enumerate(settings.plan, start=1)}
    check_distinct(
        {"--output": settings.output, "--json": target},
        {
            "MODEL": settings.model,
            "--inputs": settings.inputs,
            "--calib-data": settings.calib_data,
            "--reference": settings.reference,
            "--calibration": settings.calibration,
            "--config": str(config) if config else None,
            **plans,
        },
    )
    if target:
        check_writable(target, "--json")
