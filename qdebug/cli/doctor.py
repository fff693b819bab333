"""`qdebug doctor`."""

from __future__ import annotations

from qdebug import api
from qdebug.cli.common import emit
from qdebug.config.commands import DoctorSettings, ShownAsJson
from qdebug.report.doctor import print_doctor


def run(settings: DoctorSettings, shown: ShownAsJson) -> int:
    """Say what this machine can run."""
    result = api.doctor()
    emit(shown.json_to, result.to_dict, lambda console: print_doctor(console, result))
    return 0
