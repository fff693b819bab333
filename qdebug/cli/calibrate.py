"""`qdebug calibrate`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qdebug.calibrators.registry import method_usage
from qdebug.cli.options import (
    GATE,
    WHAT,
    WRITE,
    BatchSize,
    Config,
    FallbackPrecision,
    Force,
    Json,
    Metric,
    NoCache,
    NoProgress,
    NumSamples,
    Verbose,
    Weights,
    setting_flags,
)

if TYPE_CHECKING:
    from rich.console import Console

    from qdebug.config.calibrate import CalibrateSettings


def calibrate_command(
    model: Annotated[
        str | None, typer.Argument(help="The FP32 ONNX model.", show_default=False)
    ] = None,
    calib_data: Annotated[
        str | None,
        typer.Option(
            help="Samples to calibrate on; see compare --inputs.",
            metavar="DATA",
            rich_help_panel=WHAT,
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help=f"Calibrators, separated by commas: {method_usage()}. All of them when not given.",
            metavar="NAMES",
            rich_help_panel=WHAT,
        ),
    ] = None,
    calibrator: Annotated[
        list[str] | None,
        typer.Option(
            help="Your own: file.py:function gets a histogram and returns amax; repeatable.",
            metavar="FILE:FUNCTION",
            rich_help_panel=WHAT,
        ),
    ] = None,
    mix: Annotated[
        bool,
        typer.Option("--mix", help="Try the best method of each tensor too.", rich_help_panel=WHAT),
    ] = False,
    from_cache: Annotated[
        str | None,
        typer.Option(
            help="Judge an existing calibration too: a TensorRT cache, scales.yaml or a plan.",
            metavar="FILE",
            rich_help_panel=WHAT,
        ),
    ] = None,
    weights: Weights = None,
    fallback_precision: FallbackPrecision = None,
    weight_method: Annotated[
        str | None,
        typer.Option(
            help="Ranges of weights: max (default) or mse, of least squared error.",
            metavar="NAME",
            rich_help_panel=WHAT,
        ),
    ] = None,
    samples: NumSamples = None,
    batch_size: BatchSize = None,
    no_cache: NoCache = False,
    holdout: Annotated[
        str | None,
        typer.Option(
            help="Samples to judge on; without, a share of --calib-data.",
            metavar="DATA",
            rich_help_panel=GATE,
        ),
    ] = None,
    holdout_share: Annotated[
        float | None,
        typer.Option(
            help="The share of --calib-data to hold out (default 0.2).",
            min=0.01,
            max=0.9,
            rich_help_panel=GATE,
        ),
    ] = None,
    metric: Metric = None,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            help="Write the best ranges, for --calibration.",
            metavar="scales.yaml",
            rich_help_panel=WRITE,
        ),
    ] = None,
    trt_cache: Annotated[
        str | None,
        typer.Option(
            help="Write them as a calibration cache for TensorRT 10, of EntropyCalibration2: what "
            "trtexec and, by default, Polygraphy read. For a calibrator of another class change "
            "its first line.",
            metavar="FILE",
            rich_help_panel=WRITE,
        ),
    ] = None,
    force: Force = False,
    json: Json = None,
    config: Config = None,
    no_progress: NoProgress = False,
    verbose: Verbose = 0,
) -> int:
    """Calibrate by several methods in one pass, and compare them on samples none has seen.

    Example: qdebug calibrate model.onnx --calib-data calib.npz -o scales.yaml
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
    from qdebug.cli.common import emit, error_console, set_verbosity
    from qdebug.config.calibrate import CalibrateSettings
    from qdebug.config.resolve import resolve
    from qdebug.pipeline.calibrate.command import calibrate
    from qdebug.pipeline.calibrate.files import CalibratedFiles
    from qdebug.report.calibrate import print_calibrate
    from qdebug.report.progress import ProgressBars
    from qdebug.report.tables import print_written

    set_verbosity(verbose)
    settings = resolve(CalibrateSettings, "calibrate", flags, config)
    _check_files(settings, config, json)
    files = CalibratedFiles(settings.output, settings.trt_cache, settings.force)
    with ProgressBars(error_console(), enabled=not no_progress) as progress:
        result = calibrate(settings, progress)
    written = files.write(result)

    def show(console: Console) -> None:
        print_calibrate(console, result)
        print_written(console, *written)

    emit(json, result.to_dict, show)
    return 0


def _check_files(settings: CalibrateSettings, config: Path | None, json: str | None) -> None:
    """Refuse what would overwrite an input, before anything runs."""
    from qdebug.report.files import check_distinct, check_writable

    json_file = None if json == "-" else json
    check_distinct(
        {"--output": settings.output, "--trt-cache": settings.trt_cache, "--json": json_file},
        {
            "MODEL": settings.model,
            "--calib-data": settings.calib_data,
            "--holdout": settings.holdout,
            "--from-cache": settings.from_cache,
            "--config": str(config) if config else None,
        },
    )
    if json_file:
        check_writable(json_file, "--json")
