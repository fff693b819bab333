"""What is said of a flag that only other commands have: every time with a next step."""

from __future__ import annotations

import re

import pytest
from refusals import refused

import qdebug
from qdebug.cli.parser import as_flags
from qdebug.config.commands import COMMANDS, Command
from qdebug.config.elsewhere import instead, is_told
from qdebug.wording import spelled_by

DECLARED = {s.name: s for command in COMMANDS.values() for s in command.declared}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_flag_of_others_has_a_next_step_of_flags_that_exist(command: Command) -> None:
    own = {setting.name for setting in command.declared}
    flags = {setting.flag for c in COMMANDS.values() for setting in c.declared}
    for name in DECLARED.keys() - own:
        with spelled_by(as_flags(command)):
            advice = instead(command, name)
        assert advice.endswith("."), (command.name, name)
        assert {*re.findall(r"--[a-z][a-z0-9-]*", advice)} <= flags | {"--help"}, advice
        assert {*re.findall(r"`qdebug (\w+)", advice)} <= COMMANDS.keys(), advice
        assert "{" not in advice and "}" not in advice
    assert not any(instead(command, name) for name in own if not is_told(command, name))


@pytest.mark.parametrize("name", ["reference", "fail_on"])
def test_flags_that_an_advice_names_are_those_of_its_commands(name: str) -> None:
    """What is to be given to the command itself, it has."""
    for command in COMMANDS.values():
        own = {setting.name: setting.flag for setting in command.declared}
        with spelled_by(as_flags(command)):
            advice = instead(command, name)
        if advice.startswith("What must hold"):
            assert own["target"] in advice


def test_python_callers_are_told_the_same() -> None:
    with refused(
        "QD-USAGE-KEYWORD", "bisect() has no keyword", "`qdebug repair", "reference='FP32'"
    ):
        qdebug.bisect("a.onnx", inputs="x.npz", reference="b.onnx")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("command", "name", "says", "not_so"),
    [
        ("compare", "time_limit", "runs to its end; fewer samples (--samples N)", "search for"),
        ("init", "time_limit", "init runs no search", "--samples"),
        ("compare", "worst_group", "--group NAME lists the metric by groups", "--fail-on"),
        ("check", "worst_group", "the worst group of samples", "search for what holds"),
        ("init", "samples", "can be given fewer", "other sets"),
        ("repair", "holdout", "the other chooses between", "the other checks"),
        ("check", "save_plan", "`qdebug bisect` write plans", ""),
        ("repair", "pin", "`qdebug compare MODEL` with --pin NAME and", "--no-pin"),
    ],
)
def test_the_advice_is_about_what_was_asked(
    command: str, name: str, says: str, not_so: str
) -> None:
    with spelled_by(as_flags(COMMANDS[command])):
        advice = instead(COMMANDS[command], name)
    assert says in advice and not (not_so and not_so in advice)


def test_what_an_advice_says_of_a_limit_of_time_a_command_can_do() -> None:
    for command in COMMANDS.values():
        with spelled_by(as_flags(command)):
            advice = instead(command, "time_limit")
        own = {setting.flag for setting in command.declared}
        assert "--samples" not in advice or "--samples" in own, command.name
