"""`qdebug export`."""

from __future__ import annotations

from typing import Annotated

import typer

from qdebug.cli.options import Force
from qdebug.plan.export import EXPORT_TARGETS


def export_command(
    plan: Annotated[
        str,
        typer.Argument(
            help="A precision plan, or a calibration: scales.yaml or a TensorRT cache, which stand "
            "for INT8 in every layer that has that form.",
            metavar="PLAN",
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(help="The FP32 ONNX model; without, the one that PLAN names.", metavar="FILE"),
    ] = None,
    to: Annotated[
        str,
        typer.Option(
            help="What to write: "
            + "; ".join(f"{name} ({x.help})" for name, x in EXPORT_TARGETS.items())
            + ".",
            metavar="TARGET",
        ),
    ] = "onnx",
    missing: Annotated[
        str,
        typer.Option(
            help="INT8 layers whose inputs have no range: refuse, or leave them in float.",
            metavar="refuse|float",
        ),
    ] = "refuse",
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            help="The file to write; without, one beside the plan.",
            metavar="FILE",
        ),
    ] = None,
    force: Force = False,
) -> int:
    """Write a precision plan or a calibration for another tool.

    Example: qdebug export precision.yaml --to onnx -o model.int8.onnx
    """
    from qdebug.pipeline.export import export_plan

    done = export_plan(plan, to, model=model, output=output, force=force, missing=missing)
    for file in done.files:
        typer.echo(f"Wrote {file}")
    for note in done.notes:
        typer.echo(f"note: {note}", err=True)
    return 0
