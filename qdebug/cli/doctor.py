"""`qdebug doctor`."""

from __future__ import annotations

from qdebug.cli.options import Json


def doctor_command(json: Json = None) -> int:
    """Say what this machine can run, and what to install for the rest."""
    from qdebug.cli.common import output_console, standard_output, write_json
    from qdebug.report.doctor import doctor_to_json, print_doctor
    from qdebug.run.doctor import examine

    findings = examine()
    with standard_output():
        if json:
            write_json(doctor_to_json(findings), json)
        if json != "-":
            print_doctor(output_console(), findings)
    return 0
