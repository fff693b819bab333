"""Options that several subcommands take, with one wording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Output = Annotated[
    str | None,
    typer.Option("-o", "--output", help="The file to write.", metavar="FILE"),
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
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache",
        help="Run the model to calibrate even if an earlier pass over the same data was kept.",
    ),
]
