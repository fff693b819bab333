"""Every command and every Python block of README and docs runs as it is written.

Where the page shows what a command prints, it prints just that. If not: scripts/update_docs.py.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import forked
import pytest
import yaml
from documents import (
    REPOSITORY,
    Block,
    blocks,
    documents,
    run_qdebug,
    selected,
    still_shown,
)

ELSEWHERE = {"cd", "git", "source", ".", "export"}
"""Not ours to test."""


@pytest.mark.parametrize(
    "page", documents(), ids=lambda page: str(page.relative_to(REPOSITORY).as_posix())
)
def test_what_a_page_says_runs(page: Path, prepared: Path, tmp_path: Path) -> None:
    found = list(blocks(page.read_text("utf-8")))
    if not any(b.language in {"sh", "python", "yaml"} or "output" in b.notes for b in found):
        return
    folder = shutil.copytree(prepared, tmp_path / "folder")
    names: dict[str, Any] = {"__name__": "documentation"}
    printed: dict[tuple[str, ...], str] = {}
    problems = []
    with contextlib.chdir(folder):
        for block in found:
            try:
                _check(block, names, printed)
            except Exception as error:
                problems.append(f"{block.body}-> {type(error).__name__}: {error}")
    assert not problems, "\n\n".join(problems)


def _check(block: Block, names: dict[str, Any], printed: dict[tuple[str, ...], str]) -> None:
    """`printed` is what each command of the page printed so far."""
    if "output" in block.notes:
        _output(block.notes["output"], block.body, printed)
    elif block.language == "sh":
        commands = block.commands()
        for number, words in enumerate(commands, 1):
            code = int(block.notes.get("exits", "0")) if number == len(commands) else 0
            printed[*words] = _command(words, code, run="needs" not in block.notes)
    elif block.language == "python" and not {"needs", "file", "insert"} & set(block.notes):
        exec(compile(block.body, "<documentation>", "exec"), names)
    elif block.language == "python" and "/" not in block.notes.get("file", "/"):
        Path(block.notes["file"]).write_text(block.body, "utf-8")
    elif block.language == "yaml":
        _yaml(yaml.safe_load(block.body))


def _output(note: str, body: str, printed: dict[tuple[str, ...], str]) -> None:
    """Hold a block to what its command prints, which is run only where the page has not run it."""
    words = shlex.split(note.split(" | ")[0])
    output = printed.get((*words,)) or run_qdebug(words[1:])[1]
    now = selected(output, note)
    assert still_shown(note, now, body), now


def _command(words: list[str], code: int, *, run: bool) -> str:
    """What one command prints, or nothing where it is only held to what exists."""
    shown = ""
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    program, arguments = words[0].removeprefix(".venv/bin/"), words[1:]
    if program == "qdebug":
        if run:
            ended, shown, said = run_qdebug(arguments)
            assert ended == code, f"{shlex.join(words)}: exit code {ended}\n{shown[-800:]}{said}"
        _hold_to_help(arguments)
    elif program.startswith("scripts/"):
        assert (REPOSITORY / program).stat().st_mode & 0o111, f"{program} cannot be run"
    elif program == "python" and arguments[0].startswith("scripts/"):
        for flag in filter(lambda word: word.startswith("--"), arguments):
            assert flag in _script_help(arguments[0]), f"{arguments[0]} has no {flag}"
    elif program == "python" and arguments[:2] == ["-m", "pytest"]:
        missing = [file for file in arguments[2:] if not (REPOSITORY / file).exists()]
        assert not (run and missing), missing
    elif program == "python" and arguments[0] == "-c":
        exec(compile(arguments[1], "<documentation>", "exec"), {})
    elif program == "pip":
        _extras(arguments)
    else:
        assert program in ELSEWHERE, f"nothing tells how to test {shlex.join(words)}"
    return shown


@cache
def _help(command: str) -> str:
    return run_qdebug([command, "--help-all"])[1]


@cache
def _script_help(script: str) -> str:
    done = forked.run([REPOSITORY / script, "--help"])
    assert done.returncode == 0, done.stderr
    return done.stdout


def _hold_to_help(arguments: list[str]) -> None:
    if arguments and not arguments[0].startswith("-"):
        for flag in re.findall(r"--[\w-]+", " ".join(a for a in arguments if a.startswith("--"))):
            assert flag in f"{_help(arguments[0])} --help --help-all", (
                f"qdebug {arguments[0]} has no {flag}"
            )


def _extras(arguments: list[str]) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    for extra in re.findall(r"\[([\w,-]+)\]", " ".join(arguments)):
        for name in extra.split(","):
            assert name in project["optional-dependencies"], f"there is no extra {name}"


def _yaml(content: Any) -> None:
    """A workflow's commands and a configuration are run, a plan is read."""
    if "jobs" in content:
        for job in content["jobs"].values():
            for step in job["steps"]:
                if "run" in step:
                    _command(shlex.split(step["run"]), 0, run=True)
    elif "command" in content:
        Path("settings.yaml").write_text(yaml.safe_dump(content), "utf-8")
        code, _, said = run_qdebug([content["command"], "--config", "settings.yaml"])
        assert code == 0, said
    elif str(content.get("schema", "")).startswith("qdebug.plan/"):
        Path("plan.yaml").write_text(yaml.safe_dump(content), "utf-8")
        model = f"calib_data/{content['model']['path']}" if "model" in content else "model.onnx"
        flags = [model, "--inputs", "samples.npz", "--plan", "plan.yaml"]
        code, _, said = run_qdebug(["compare", *flags])
        assert code == 0, said
