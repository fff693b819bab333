"""`qdebug doctor`."""

from __future__ import annotations

from qdebug.cli.options import Json


def doctor_command(json: Json = None) -> int:
    """Say what this machine can run, and what to install for the rest."""
    from qdebug.cli.common import emit
    from qdebug.report.doctor import print_doctor
    from qdebug.run.doctor import examine

    result = examine()
    emit(json, result.to_dict, lambda console: print_doctor(console, result))
    return 0
