"""The recipes are followed: a copy of the sources gets their code, and then has the new part.

A comment before a block says where it goes: ``<!-- file: PATH -->`` for a new file, or
``<!-- insert: PATH | in: LINE -->`` for an item of what begins with that line: the last one in
brackets, or, with ``| above: LINE``, before the first such line that follows. It is indented.
Without `in` it goes above the first such line of the file.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import forked
import pytest
from documents import REPOSITORY, blocks

RECIPES = REPOSITORY / "docs" / "recipes"
COPIED = ("qdebug", "tests", "scripts", "docs", "calib_data", "README.md", "pyproject.toml")
EDITS = {"file", "insert"}
WITHOUT = shutil.ignore_patterns(".git", "node_modules")  # with what Python has compiled


class Follower:
    """A copy of the sources to which a recipe has been applied."""

    def __init__(self, recipe: str, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            source = REPOSITORY / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=WITHOUT)
            else:
                shutil.copy(source, folder / name)
        self.shown: list[list[str]] = []
        self.touched: set[str] = set()
        for block in blocks((RECIPES / recipe).read_text("utf-8")):
            self.touched |= {block.notes[k].split(" | ")[0] for k in block.notes.keys() & EDITS}
            if "file" in block.notes:
                path = folder / block.notes["file"]
                assert not path.exists()
                path.write_text(block.body, "utf-8")
            elif "insert" in block.notes:
                _insert(folder, block.notes["insert"], block.body)
            elif block.language == "sh":
                self.shown += block.commands()

    def run(self, command: list[str], exits: int = 0) -> str:
        """What a command of the recipe prints."""
        done = forked.run(
            _program(command), cwd=self.folder, env=self._environment(), libraries_only=True
        )
        assert done.returncode == exits, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def run_in_turn(self, commands: list[list[str]]) -> list[str]:
        """What each of some commands prints: they share what importing the sources takes."""
        ended = forked.run_in_turn(
            [_program(command) for command in commands], cwd=self.folder, env=self._environment()
        )
        for command, done in zip(commands, ended, strict=True):
            assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
        return [done.stdout for done in ended]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.folder), "COLUMNS": "120"}

    def all_shown(self) -> dict[str, str]:
        """What every command of the recipe prints, by its second word; "--help" for any help."""
        said: dict[str, str] = {}
        for command, printed in zip(self.shown, self.run_in_turn(self.shown), strict=True):
            key = "--help" if command[2:] in (["--help"], ["--help-all"]) else command[1]
            said[key] = said.get(key, "") + printed
        return said


def _program(command: list[str]) -> list[str]:
    words = {"qdebug": ["-m", "qdebug"], ".venv/bin/python": []}
    return [*words[command[0]], *command[1:]]


def _insert(folder: Path, note: str, body: str) -> None:
    name, *parts = re.split(r" \| (?=in: |above: )", note)
    where = dict(part.split(": ", 1) for part in parts)
    lines = (folder / name).read_text("utf-8").splitlines(keepends=True)
    if "in" not in where:
        lines.insert(_line(lines, where["above"]), body + "\n\n")
    else:
        start = _line(lines, where["in"])
        outer = lines[start][: -len(lines[start].lstrip())]
        if "above" in where:
            at = _line(lines, where["above"], start)
            is_item = lines[start].rstrip().endswith(("(", "[", "{")) and "def " not in lines[start]
            body = body.rstrip("\n") + ",\n" if is_item else body + "\n"
        else:
            closing = tuple(outer + bracket for bracket in ")]}")
            at = next(i for i in range(start + 1, len(lines)) if lines[i].rstrip() in closing)
            body = body.rstrip("\n") + ",\n"
        lines.insert(at, textwrap.indent(body, outer + " " * 4))
    (folder / name).write_text("".join(lines), "utf-8")


def _line(lines: list[str], text: str, start: int = 0) -> int:
    return next(i for i in range(start, len(lines)) if lines[i].strip() == text)


@pytest.fixture(scope="module")
def calibrator(tmp_path_factory: pytest.TempPathFactory) -> Follower:
    return Follower("add-a-calibrator.md", tmp_path_factory.mktemp("calibrator"))


@pytest.fixture(scope="module")
def metric(tmp_path_factory: pytest.TempPathFactory) -> Follower:
    return Follower("add-a-metric.md", tmp_path_factory.mktemp("metric"))


@pytest.fixture(scope="module")
def number_format(tmp_path_factory: pytest.TempPathFactory) -> Follower:
    return Follower("add-a-format.md", tmp_path_factory.mktemp("format"))


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Follower:
    """With what an installer makes of the entry point."""
    found = Follower("add-a-backend.md", tmp_path_factory.mktemp("backend"))
    points = tomllib.loads((found.folder / "reference.toml").read_text("utf-8"))["project"]
    about = found.folder / "qdebug_reference-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: qdebug-reference\nVersion: 1.0\n")
    lines = ["[qdebug.backends]"]
    lines += [f"{k} = {v}" for k, v in points["entry-points"]["qdebug.backends"].items()]
    (about / "entry_points.txt").write_text("\n".join(lines))
    return found


@pytest.fixture(scope="module")
def data_format(tmp_path_factory: pytest.TempPathFactory) -> Follower:
    return Follower("add-a-data-format.md", tmp_path_factory.mktemp("data_format"))


def test_a_new_data_format_is_everywhere(data_format: Follower) -> None:
    """And its samples give the same figures as those of the file that they were written from."""
    said = data_format.all_shown()
    assert ".tsv" in said["--help"] and " passed in " in said["-m"]
    table = (data_format.folder / "docs/reference/data.md").read_text("utf-8")
    assert "| `.tsv` | one sample per line" in table
    compare = next(c for c in data_format.shown if "digits.tsv" in c and c[0] == "qdebug")
    other = ["calib_data/digits_holdout.npz" if w == "digits.tsv" else w for w in compare]
    found = json.loads((data_format.folder / "result.json").read_text("utf-8"))
    data_format.run([*other[:-1], "other.json"])
    expected = json.loads((data_format.folder / "other.json").read_text("utf-8"))
    assert found["outputs"] == expected["outputs"]


def test_a_new_backend_is_everywhere(backend: Follower) -> None:
    said = backend.all_shown()
    assert "backend reference" in said["doctor"]
    assert " passed" in said["-m"] and "failed" not in said["-m"]
    assert "INT8 on reference against FP32" in said["compare"]
    assert "reference" in backend.run(["qdebug", "compare", "--help"])


def test_a_new_backend_is_compared_with_the_simulation(backend: Follower) -> None:
    compare = next(command for command in backend.shown if command[1] == "compare")
    backend.run([*compare, "--force"])
    found = json.loads((backend.folder / "result.json").read_text("utf-8"))
    engine = found["engine"]
    assert found["backend"] == "reference" and engine["executed"] and engine["audit"] is None
    (output,) = engine["execution"]["outputs"]
    assert output["kernel_db"] > output["quantization_db"] + 20
    assert len(engine["execution"]["tensors"]) > 25


def test_a_backend_whose_package_is_broken(backend: Follower) -> None:
    """It is named, and every other backend goes on."""
    broken = backend.folder / "broken-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_text("[qdebug.backends]\nbroken = nowhere:SPEC\n")
    try:
        flags = "compare calib_data/digits_cnn.onnx --inputs calib_data/digits_holdout.npz"
        backend.run(["qdebug", *flags.split(), "--samples", "1", "--backend", "broken"], exits=3)
        assert "backend reference" in backend.run(["qdebug", "doctor"])
    finally:
        shutil.rmtree(broken)


def test_a_new_calibrator_is_everywhere(calibrator: Follower) -> None:
    said = calibrator.all_shown()
    assert "gauss[:K]" in said["--help"]
    rows = [line.split()[0] for line in said["calibrate"].splitlines() if line.strip()]
    assert {"gauss:3.92", "gauss:6", "minmax"} <= set(rows)
    assert any(line.split()[:1] == ["gauss:3.92"] for line in said["ranges"].splitlines())
    assert " passed in " in said["-m"]
    table = (calibrator.folder / "docs/reference/calibrators.md").read_text("utf-8")
    assert "| `gauss[:K]` | K times the rms" in table


def test_a_new_calibrator_gives_its_ranges(calibrator: Follower) -> None:
    command = "qdebug calibrate calib_data/digits_cnn.onnx --method gauss:6 --json found.json"
    calibrator.run([*command.split(), "--calib-data", "calib_data/digits_calib.npz"])
    found = json.loads((calibrator.folder / "found.json").read_text("utf-8"))
    assert list(found["methods"]) == ["gauss:6"]
    assert all(t["amax"] > 0 for t in found["methods"]["gauss:6"]["tensors"].values())


def test_a_new_metric_is_everywhere(metric: Follower) -> None:
    said = metric.all_shown()
    assert "psnr_db" in said["--help"]
    heads = next(line for line in said["compare"].splitlines() if " local dB" in line)
    assert heads.split()[-4:] == ["cum.", "dB", "PSNR", "clip"]
    assert "output.psnr_db>=20" in said["compare"]
    assert " passed in " in said["-m"]
    table = (metric.folder / "docs/reference/metrics.md").read_text("utf-8")
    assert "| `psnr_db` | peak signal-to-noise ratio" in table
    assert "| `mean-rank` | the mean rank of the label's score" in table
    assert "mean-rank" in said["--help"] and "metric<=1.2" in said["compare"]


def test_a_new_metric_has_values_and_can_fail_a_gate(metric: Follower) -> None:
    compare = next(
        command for command in metric.shown if command[1] == "compare" and "--json" in command
    )
    again = [w.replace("psnr_db>=20", "psnr_db>=200") for w in compare]
    metric.run([*again, "--force"], exits=1)
    found = json.loads((metric.folder / "result.json").read_text("utf-8"))
    (output,) = found["outputs"]
    peak = 20 * math.log10(output["ref_amax"] / output["rmse"])
    assert output["psnr_db"] == pytest.approx(peak)
    assert found["verdict"]["conditions"][0]["value"] == output["psnr_db"]
    assert all("psnr_db" in entry for entry in (*found["layers"], *found["tensors"]))


def test_a_new_format_is_planned_everywhere(number_format: Follower) -> None:
    assert len([name for name in number_format.touched if name.startswith("qdebug/")]) == 5
    said = number_format.all_shown()
    assert "fp4" in said["--help"]
    assert " passed in " in said["-m"] and "failed" not in said["-m"]
    assert "FP4 simulated on ONNX Runtime against FP32" in said["compare"]
    assert "so one FP4 E2M1 step" in said["compare"]
    found = json.loads((number_format.folder / "result.json").read_text("utf-8"))
    products = {x["precision"] for x in found["layers"] if x["op_type"] in ("Conv", "Gemm")}
    assert found["precision"] == "fp4" and products == {"fp4"}
    assert "which layers must not run in FP4" in said["bisect"]
    plan = (number_format.folder / "precision.yaml").read_text("utf-8")
    assert "precision: fp4" in plan and "layers:" in plan


def test_a_new_format_is_read_and_repaired(number_format: Follower) -> None:
    model = "calib_data/digits_cnn.onnx"
    data = "--inputs calib_data/digits_holdout.npz --samples 32"
    remedies = "--only least-squares --no-pin"
    calibrated = "--calib-data calib_data/digits_calib.npz"
    commands = (
        f"compare {model} {data} {calibrated} --precision fp4 --save-plan fp4.yaml --json planned",
        f"export fp4.yaml --model {model} --to onnx -o fp4.onnx",
        f"compare fp4.onnx --reference {model} {data} --json read",
        f"repair {model} {data} {calibrated} --precision fp4 {remedies} --json repaired",
    )
    number_format.run_in_turn([["qdebug", *command.split()] for command in commands])
    planned, read, repaired = (
        json.loads((number_format.folder / name).read_text("utf-8"))
        for name in ("planned", "read", "repaired")
    )
    assert read["precision"] == "fp4"
    sqnr = [found["outputs"][0]["sqnr_db"] for found in (planned, read)]
    assert sqnr[0] == pytest.approx(sqnr[1])
    assert repaired["precision"] == "fp4"


def test_the_tables_of_the_documentation_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/update_tables.py", "--check"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
