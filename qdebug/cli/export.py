"""`qdebug export`."""

from __future__ import annotations

from typing import Annotated

import typer

from qdebug.cli.options import Force, Output

TARGETS = ("onnx",)


def export_command(
    plan: Annotated[str, typer.Argument(help="The precision plan (YAML).")],
    model: Annotated[
        str | None,
        typer.Option(help="The ONNX model; without, the one that the plan names."),
    ] = None,
    to: Annotated[
        str, typer.Option(help="What to write: onnx (an explicit Q/DQ + Cast model).")
    ] = "onnx",
    output: Output = None,
    force: Force = False,
) -> int:
    """Write a precision plan for another tool.

    Example: qdebug export precision.yaml --to onnx -o model.int8.onnx
    """
    from qdebug.pipeline.export import export_plan

    written = export_plan(plan, to, model=model, output=output, force=force)
    typer.echo(f"Wrote {written}")
    return 0
