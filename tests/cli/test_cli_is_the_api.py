"""The command line is a client of the Python API: it has nothing that the API lacks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import qdebug
from qdebug import api
from qdebug.cli.app import main
from qdebug.config.commands import COMMANDS, Command, Shown
from qdebug.config.option import Setting, settings_of
from qdebug.config.resolve import from_keywords

VALUES = {  # where any text will not do
    "backend": "tensorrt",
    "holdout_share": "0.4",
    "keep": "all",
    "max_drop": "0.1",
    "max_rise": "0.1",
    "memory_budget": "64M",
    "optimization_level": "3",
    "select_point": "knee",
    "time_limit": "9",
    "to": "trtexec",
    "workspace": "64M",
}
with_settings = pytest.mark.parametrize(
    "command", [c for c in COMMANDS.values() if settings_of(c.settings)], ids=lambda c: c.name
)


class CalledError(Exception):
    """Raised by what stands for a function of the API, with the settings that it got."""


def _value(setting: Setting, folder: Path) -> str:
    """A value of a setting that is not its default."""
    if setting.option.writes:
        return str(folder / setting.name)
    if setting.name in VALUES:
        return VALUES[setting.name]
    if setting.choices:
        default = setting.default if isinstance(setting.default, tuple) else (setting.default,)
        return next(choice for choice in setting.choices if choice not in default)
    return "7" if setting.type_name == "integer" else f"some-{setting.name}"


def _flags(setting: Setting, folder: Path) -> list[str]:
    if setting.is_switch:
        return [setting.flag]
    value = _value(setting, folder)
    return [value] if setting.option.positional else [setting.flag, value]


@with_settings
def test_every_flag_reaches_the_api_as_a_keyword_would(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(settings: Any, **_: Any) -> None:
        raise CalledError(settings)

    monkeypatch.setattr(api, command.name, record)
    declared = settings_of(command.settings)
    argv = [command.name, *(part for s in declared for part in _flags(s, tmp_path)), "-vv"]
    seen: list[Any] = []
    monkeypatch.setattr("qdebug.cli.app._report", lambda error, _: seen.append(error) or 3)
    assert main(argv) == 3
    (error,) = seen
    assert isinstance(error, CalledError), error
    (settings,) = error.args
    assert type(settings) is command.settings
    for setting in declared:
        assert getattr(settings, setting.name) != setting.default, setting.name
    keywords = {
        s.name: s.default is not True if s.is_switch else _value(s, tmp_path) for s in declared
    }
    assert from_keywords(command.settings, keywords) == settings


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda c: c.name)
def test_beside_settings_only_what_is_shown_is_told_by_flags(command: Command) -> None:
    function: Callable[..., Any] = getattr(qdebug, command.name)
    assert function.__doc__
    assert issubclass(command.shown, Shown)
    shown = {setting.name for setting in settings_of(command.shown)}
    assert shown <= {"json_to", "config", "progress", "top", "verbose"}


def test_the_reference_pages_are_current(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "scripts/make_reference.py", "--check"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
