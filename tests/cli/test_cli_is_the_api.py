"""The command line is a client of the Python API: it has nothing that the API lacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import qdebug
from qdebug import api
from qdebug.cli.app import main
from qdebug.config.commands import COMMANDS, Command
from qdebug.config.flag import Setting, settings_of
from qdebug.config.validate import settled

VALUES = {  # where any text will not do
    "preprocess": "yolo",
    "shape": "x:1x3x8x8",
    "backend": "tensorrt",
    "block_size": "64",
    "build_timeout": "60",
    "cluster": "local:3",
    "holdout_share": "0.45",
    "keep": "all",
    "max_drop": "0.1",
    "max_rise": "0.1",
    "memory_budget": "64M",
    "never": "smoothing",
    "only": "ranges",
    "optimization_level": "3",
    "select_point": "knee",
    "sort": "amax",
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
    if setting.written:
        return str(folder / setting.name)
    if setting.name in VALUES:
        return VALUES[setting.name]
    if setting.choices:
        default = setting.default if isinstance(setting.default, tuple) else (setting.default,)
        return next(choice for choice in setting.choices if choice not in default)
    return "7" if int in setting.parts else f"some-{setting.name}"


def _flags(setting: Setting, folder: Path) -> list[str]:
    if setting.is_switch:
        return [setting.flag]
    value = _value(setting, folder)
    return [value] if setting.positional else [setting.flag, value]


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
    assert settled(command.settings, keywords) == settings


def test_top_shows_so_many_layers_of_the_result(desk: Any) -> None:
    """The table is cut, the result of the API is whole: it has every layer that any table shows."""
    result = qdebug.compare("net.onnx", inputs="data.npz")
    ranked = [layer.name for layer in result.layers]
    assert len(ranked) == 5
    for top in (1, 3, 99):
        lines = desk.compare("--top", top).out.splitlines()
        rows = [line.split() for line in lines if line.split()[:1] and line.split()[0].isdigit()]
        shown = [(int(row[0]), row[1], row[2]) for row in rows]
        assert shown == [(x.rank, x.name, x.op_type) for x in result.layers[:top]]


def test_the_reference_pages_are_current(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "scripts/make_reference.py", "--check"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
