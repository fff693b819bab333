"""Settings are declared once; flags, keys, types and defaults follow from the declaration."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from qdebug.config.commands import COMMANDS, Command
from qdebug.config.compare import CompareSettings
from qdebug.config.option import GROUPS, Setting, flags_of, settings_of

commands = pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda c: c.name)


def _of(name: str) -> Setting:
    return next(s for s in settings_of(CompareSettings) if s.name == name)


@commands
def test_every_field_is_declared_with_help_and_a_known_group(command: Command) -> None:
    for kind in (command.settings, command.shown):
        declared = settings_of(kind)
        assert {s.name for s in declared} == {f.name for f in dataclasses.fields(kind)}
        for setting in declared:
            assert setting.option.help.endswith((".", "?", "…", ":")), setting.name
            assert setting.option.group in GROUPS
            assert bool(setting.option.group) != setting.option.positional, setting.name
            if setting.default is True:
                assert setting.option.off and setting.flag.startswith("--no-"), setting.name


@commands
def test_flags_are_unique(command: Command) -> None:
    flags = [*flags_of(command.settings).values(), *flags_of(command.shown).values()]
    assert len(flags) == len(set(flags))


@commands
def test_settings_are_frozen_and_new_files_can_be_forced(command: Command) -> None:
    assert command.settings.__dataclass_params__.frozen
    names = {s.name for s in settings_of(command.settings)}
    if any(s.option.writes == "new" for s in settings_of(command.settings)):
        assert "force" in names


def test_what_derives_from_a_declaration() -> None:
    assert _of("model").flag == "MODEL" and _of("model").required
    assert _of("cache").flag == "--no-cache" and _of("cache").shown_default == "on"
    assert _of("tactic_sources").flag == "--tactic-source" and _of("tactic_sources").is_list
    assert _of("fallback_precision").key == "fallback-precision"
    assert _of("fallback_precision").choices == ("bf16", "fp16", "fp32")
    assert _of("memory_budget").shown_default == "2G"
    kinds = {name: _of(name).type_name for name in ("samples", "force", "weights", "keep")}
    assert kinds == {"samples": "integer", "force": "switch", "weights": "choice", "keep": "text"}


def test_annotations_for_python_callers() -> None:
    assert _of("inputs").python_type.startswith("str | os.PathLike[str] | Mapping")
    assert _of("plan").python_type.endswith("| None")
    assert _of("fail_on").python_type == "Sequence[str]"
    assert _of("samples").python_type == "int | None"
    assert _of("effect").python_type == "Literal['exact', 'fast', 'none']"


def test_settings_import_no_command_line_library() -> None:
    import qdebug.config.option as module

    assert "cyclopts" not in inspect.getsource(module)
