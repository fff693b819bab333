"""`qdebug ranges`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from qdebug.cli.options import (
    WHAT,
    BatchSize,
    Force,
    Json,
    NoCache,
    NoProgress,
    NumSamples,
    Verbose,
)

if TYPE_CHECKING:
    from rich.console import Console

_SHOW = "What to show"


def ranges_command(
    source: Annotated[
        str, typer.Argument(metavar="RUN.h5|MODEL.onnx", help="A run file, or an FP32 ONNX model.")
    ],
    calib_data: Annotated[
        str | None,
        typer.Option(
            help="Samples to run the model on; see compare --inputs.",
            metavar="DATA",
            rich_help_panel=WHAT,
        ),
    ] = None,
    holdout: Annotated[
        str | None,
        typer.Option(
            help="Other samples: how far do they leave the ranges?",
            metavar="DATA",
            rich_help_panel=WHAT,
        ),
    ] = None,
    samples: NumSamples = None,
    batch_size: BatchSize = None,
    no_cache: NoCache = False,
    tensor: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this tensor, with its histogram and calibrators; repeatable.",
            metavar="NAME",
            rich_help_panel=_SHOW,
        ),
    ] = None,
    top: Annotated[
        int, typer.Option(help="Show the first N tensors.", min=1, rich_help_panel=_SHOW)
    ] = 20,
    sort: Annotated[
        str,
        typer.Option(help="By crest, amax, name, order or growth.", rich_help_panel=_SHOW),
    ] = "crest",
    plot: Annotated[
        str | None,
        typer.Option(
            help="Draw all ranges over the depth of the network, or with one --tensor its "
            "histogram; into a folder both, for each tensor shown.",
            metavar="FILE.svg|FILE.png|FOLDER",
            rich_help_panel=_SHOW,
        ),
    ] = None,
    force: Force = False,
    json: Json = None,
    no_progress: NoProgress = False,
    verbose: Verbose = 0,
) -> int:
    """Dynamic range, histogram and calibration coverage of every tensor.

    Example: qdebug ranges model.onnx --calib-data calib.npz --holdout others.npz
    """
    # Imported here: --help must not wait for the numeric packages.
    import logging

    from qdebug.cli.common import emit, error_console, set_verbosity
    from qdebug.pipeline.ranges.command import RangesSettings, ranges
    from qdebug.report.files import check_distinct, check_writable
    from qdebug.report.plotfiles import PlotFiles
    from qdebug.report.progress import ProgressBars
    from qdebug.report.ranges import print_ranges

    set_verbosity(verbose)
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # -vv is about qdebug
    tensors = tuple(dict.fromkeys(tensor or ()))
    plots = PlotFiles(plot, tensors, top, force) if plot else None
    json_file = json if json != "-" else None
    check_distinct({"--plot": plot, "--json": json_file}, {"the argument": source})
    if json_file:
        check_writable(json_file, "--json")
    settings = RangesSettings(
        source=source,
        calib_data=calib_data,
        holdout=holdout,
        tensors=tensors,
        sort=sort,
        detail_top=top if plots and plots.is_folder else 0,
        samples=samples,
        batch_size=batch_size,
        cache=not no_cache,
    )
    with ProgressBars(error_console(), enabled=not no_progress) as progress:
        result = ranges(settings, progress)
    written = plots.write(result) if plots else []

    def show(console: Console) -> None:
        shown = max(top, len(tensors))
        print_ranges(console, result, top=shown, detailed=bool(tensors))
        for path in written:
            console.print(f"Wrote {path}", markup=False, soft_wrap=True)

    emit(json, result.to_dict, show)
    return 0
