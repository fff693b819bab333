"""`qdebug inspect`."""

from __future__ import annotations

from typing import Annotated

import typer

from qdebug.cli.options import GATE, Json

_MORE = "What else is known"


def inspect_command(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="An ONNX model, an engine (on its GPU), layer information or a profile of trtexec "
            "(JSON), or a verbose build log of qdebug, trtexec, Polygraphy or Python.",
            show_default=False,
        ),
    ],
    profile: Annotated[
        str | None,
        typer.Option(
            help="Times of the same engine's layers (trtexec --exportProfile).",
            metavar="FILE.json",
            rich_help_panel=_MORE,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="The ONNX model that was built; without, the one that --expect names.",
            metavar="FILE.onnx",
            rich_help_panel=_MORE,
        ),
    ] = None,
    diff: Annotated[
        str | None,
        typer.Option(
            help="Another engine of the same model: what differs?",
            metavar="FILE",
            rich_help_panel=_MORE,
        ),
    ] = None,
    expect: Annotated[
        str | None,
        typer.Option(
            help="The plan that was asked for; exit 1 if a layer was built in another precision.",
            metavar="FILE.yaml",
            rich_help_panel=GATE,
        ),
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            help='Exit 1 unless it holds, as "int8_share>=0.8" or "reformat_count<=4"; repeatable. '
            "A wrong name lists all.",
            metavar="CONDITION",
            rich_help_panel=GATE,
        ),
    ] = None,
    top: Annotated[int, typer.Option(help="Show the first N layers.", min=1)] = 20,
    json: Json = None,
    verbose: Annotated[
        int,
        typer.Option(
            "-v",
            "--verbose",
            count=True,
            help="Show tactics, formats and all events; -vv adds tracebacks to errors.",
        ),
    ] = 0,
) -> int:
    """What an engine really is: precision, fusion, formats and tactics of its layers.

    Example: qdebug inspect build.log --expect precision.yaml --fail-on "int8_share>=0.8"
    """
    from qdebug.cli.common import emit, set_verbosity
    from qdebug.pipeline.inspect import InspectSettings, inspect
    from qdebug.report.files import check_distinct, check_writable
    from qdebug.report.inspect import print_inspection

    set_verbosity(verbose)
    if json and json != "-":
        others = {"the argument": file, "--profile": profile, "--model": model}
        check_distinct({"--json": json}, {**others, "--expect": expect, "--diff": diff})
        check_writable(json, "--json")
    result = inspect(
        InspectSettings(
            path=file,
            profile=profile,
            plan=expect,
            model=model,
            other=diff,
            fail_on=tuple(fail_on or ()),
        )
    )
    emit(
        json,
        result.to_dict,
        lambda console: print_inspection(console, result, top=top, detailed=bool(verbose)),
    )
    return 0 if result.passed else 1
