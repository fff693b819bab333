"""Settings are declared once; flags, keys and defaults follow from the declaration."""

from __future__ import annotations

from typing import Any

import pytest

from qdebug.config.commands import COMMANDS, Command
from qdebug.config.compare import CompareSettings
from qdebug.config.flag import GROUPS, Setting, settings_of

commands = pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda c: c.name)


def _of(name: str) -> Setting:
    return next(s for s in settings_of(CompareSettings) if s.name == name)


@commands
def test_every_field_is_declared_with_help_and_a_known_group(command: Command) -> None:
    for setting in command.declared:
        text = setting.parameter.help or ""
        assert text.endswith((".", "?", "…", ":")), setting.name
        assert setting.group in GROUPS
        if setting.default is True:
            assert setting.flag.startswith("--no-"), setting.name


@commands
def test_flags_are_unique(command: Command) -> None:
    flags = [flag for setting in command.declared for flag in setting.flags]
    assert len(flags) == len(set(flags))


@commands
def test_settings_are_frozen_and_new_files_can_be_forced(command: Command) -> None:
    assert command.settings.__dataclass_params__.frozen
    names = {s.name for s in command.declared}
    if any(s.written == "new" for s in settings_of(command.settings)):
        assert "force" in names


def test_what_derives_from_a_declaration() -> None:
    assert _of("model").flag == "MODEL" and _of("model").required
    assert _of("cache").flag == "--no-cache" and _of("cache").is_switch
    assert _of("output").flags == ("--output", "-o")
    assert _of("tactic_sources").flag == "--tactic-source" and _of("tactic_sources").is_list
    assert _of("memory_budget").shown_default == "2G" and _of("effect").shown_default == "fast"
    assert _of("calib_data").key == "calib-data"
    assert _of("weights").choices == ("per-channel", "per-tensor")
    assert _of("inputs").takes_objects and not _of("keep").takes_objects


@pytest.mark.parametrize(
    ("name", "written"), [("inputs", ""), ("output", "new"), ("timing_cache", "own")]
)
def test_files(name: str, written: str) -> None:
    found: Any = _of(name).file
    assert found is not None and found.written == written
