"""`qdebug doctor`."""

from __future__ import annotations

from qdebug import api
from qdebug.cli.common import emit
from qdebug.config.commands import DoctorSettings, ShownExamination
from qdebug.display.doctor import view


def run(settings: DoctorSettings, shown: ShownExamination) -> int:
    """Say what this machine can run."""
    result = api.doctor()
    emit(shown.json_to, result, lambda: view(result), force=shown.force)
    return 0
