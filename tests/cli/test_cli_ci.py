"""What CI systems use: JUnit's XML, the action, its table, the hook."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml


def test_conditions_as_junit(desk: Any) -> None:
    flags = ["compare", "net.onnx", "--inputs", "data.npz", "--effect", "none"]
    gates = ["--fail-on", "output.cosine>=2", "--fail-on", "output.sqnr_db>=-99"]
    done = desk.run(*flags, *gates, "--junit", "junit.xml")
    assert done.code == 1 and "junit.xml" in done.out
    suite = ElementTree.parse("junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "0")
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["output.cosine>=2"]
    desk.refused(*flags, "--junit", "junit.xml", says=["QD-STORE-OUTPUT-EXISTS"])


def test_the_action_runs_what_it_prints(desk: Any, repository: Path) -> None:
    """Its steps' inputs exist; the script compares, writes the table, and ends as the gate does."""
    action = yaml.safe_load((repository / "action.yml").read_text())
    step = action["runs"]["steps"][0]
    used = {v.split("inputs.")[1].split(" ")[0] for v in step["env"].values() if "inputs." in v}
    assert used == set(action["inputs"])
    Path("qdebug.yaml").write_text(
        "command: compare\nmodel: net.onnx\ninputs: data.npz\neffect: none\n"
        "fail-on: ['output.cosine>=2']\n"
    )
    Path("bin").mkdir()
    Path("bin/python").write_text(
        f'#!/bin/sh\n[ "$2" = pip ] && exit 0\nexec {sys.executable} "$@"\n'
    )
    Path("bin/gh").write_text('#!/bin/sh\nprintf "%s " "$@" >> gh.txt\ncat "$5" >> gh.txt\n')
    for program in ("python", "gh"):
        Path("bin", program).chmod(0o755)
    environment = os.environ | {
        "PATH": f"{Path('bin').absolute()}:{os.environ['PATH']}",
        "QDEBUG_ACTION": str(repository),
        "QDEBUG_ARGUMENTS": "--samples 4",
        "GITHUB_OUTPUT": "output.txt",
        "GITHUB_STEP_SUMMARY": "summary.md",
    }

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        script = ["bash", str(repository / "scripts" / "ci" / "action")]
        return subprocess.run(
            script, env=environment | more, capture_output=True, text=True, check=False
        )

    dry = run(QDEBUG_DRY_RUN="true")
    assert dry.returncode == 0 and not Path("qdebug-report").exists()
    assert "+ python -m qdebug compare --config qdebug.yaml" in dry.stdout
    assert "--samples 4" in dry.stdout
    done = run(QDEBUG_COMMENT="true", QDEBUG_PULL_REQUEST="7")
    assert done.returncode == 1, done.stderr
    assert "::error title=qdebug::the gate does not hold" in done.stdout
    assert "exit-code=1" in Path("output.txt").read_text()
    table = Path("summary.md").read_text()
    comment = "pr comment 7 --body-file qdebug-report/summary.md "
    assert Path("gh.txt").read_text() == comment + table
    assert "### qdebug: net.onnx failed" in table and "| `output.cosine>=2` |" in table
    assert "its outputs are not given: --framework DATA" in table
    kept = {file.name for file in Path("qdebug-report").iterdir()}
    assert kept == {"result.json", "report.html", "junit.xml", "summary.md"}
    Path("qdebug.yaml").write_text("command: compare\nmodel: none.onnx\ninputs: data.npz\n")
    assert run(QDEBUG_COMMENT="true", QDEBUG_PULL_REQUEST="7").returncode == 2
    # What the earlier comparison wrote is not of this one.
    assert not list(Path("qdebug-report").iterdir())
    assert Path("summary.md").read_text() == table
    assert Path("gh.txt").read_text() == comment + table


def test_the_hook_names_a_command_that_there_is(repository: Path) -> None:
    (hook,) = yaml.safe_load((repository / ".pre-commit-hooks.yaml").read_text())
    assert hook["entry"].split()[:2] == ["qdebug", "compare"] and not hook["pass_filenames"]
    extras = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    assert hook["additional_dependencies"] == extras["optional-dependencies"]["vision"]
