"""`qdebug export`."""

from __future__ import annotations

import sys

from qdebug import api
from qdebug.cli.process import output, standard_output
from qdebug.config.commands import ShownWithConfig
from qdebug.config.export import ExportSettings
from qdebug.wording import printable


def run(settings: ExportSettings, shown: ShownWithConfig) -> int:
    """Write the files, and say which."""
    done = api.export(settings)
    with standard_output():
        for file in done.files:
            print(f"Wrote {printable(str(file))}", file=output())
    for note in done.notes:
        print(f"note: {printable(note)}", file=sys.stderr)
    return 0
