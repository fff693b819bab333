"""`qdebug doctor`."""

from __future__ import annotations

from qdebug import api
from qdebug.cli.common import emit
from qdebug.config.commands import DoctorSettings, ShownAsJson
from qdebug.display.doctor import view


def run(settings: DoctorSettings, shown: ShownAsJson) -> int:
    """Say what this machine can run."""
    result = api.doctor()
    emit(shown.json_to, result, lambda: view(result))
    return 0
