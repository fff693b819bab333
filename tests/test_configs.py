"""Every configuration under configs/ is run; its comment says how it ends. And how they resolve."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qdebug.config.calibrate import CalibrateSettings
from qdebug.config.compare import CompareSettings
from qdebug.config.resolve import file_schema, parse_bytes, resolve
from qdebug.errors import UsageError

REPOSITORY = Path(__file__).parents[1]
CONFIGS = sorted((REPOSITORY / "configs").glob("*.yaml"))
ENDS = {  # exit code, last lines
    "digits_cnn_bisect.yaml": (0, "PASSED: 3 layers pinned, each was shown to be needed."),
    "digits_cnn_int8.yaml": (1, "FAILS  metric>=0.95"),
    "digits_cnn_per_channel.yaml": (0, "PASSED: all 2 conditions hold."),
    "digits_encoder_calibrate.yaml": (0, "Best: mse (by output SQNR, of 3 equal by the metric)"),
    "digits_encoder_fp16.yaml": (0, "PASSED: all 2 conditions hold."),
}


def test_every_configuration_is_covered() -> None:
    assert {path.name for path in CONFIGS} == set(ENDS)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_configuration_ends_as_its_comment_says(path: Path, tmp_path: Path) -> None:
    command = re.search(r"^# Run it with: qdebug (.*)$", path.read_text("utf-8"), re.MULTILINE)
    assert command, "a configuration says how to run it"
    done = subprocess.run(
        [sys.executable, "-m", "qdebug", *command.group(1).split()],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "QDEBUG_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    code, said = ENDS[path.name]
    assert done.returncode == code, done.stderr
    assert said in done.stdout


@pytest.mark.parametrize(
    ("kind", "command"), [(CompareSettings, "compare"), (CalibrateSettings, "calibrate")]
)
def test_the_file_takes_every_setting(kind: type[Any], command: str) -> None:
    settings = {field.name for field in dataclasses.fields(kind)}
    assert set(file_schema(kind, command).model_fields) - {"command"} == settings


def test_flags_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "model: a.onnx\ninputs: a.npz\nprecision: fp16\nkeep-dtype: float16\nmemory-budget: 512M\n"
        "fail-on: [output.cosine>=0.9, layer.sqnr_db>=10]\nforce: true\n"
    )
    found = resolve(
        CompareSettings, "compare", {"precision": "int8", "model": None, "fail_on": ()}, file
    )
    assert (found.model, found.precision, found.keep_dtype) == ("a.onnx", "int8", "float16")
    assert found.memory_budget == 512 << 20 and found.force
    assert found.fail_on == ("output.cosine>=0.9", "layer.sqnr_db>=10")
    assert found.method == CompareSettings("m", "i").method  # neither: the default
    gate = resolve(CompareSettings, "compare", {"fail_on": ("metric>=1",), "samples": 3}, file)
    assert (gate.fail_on, gate.samples) == (("metric>=1",), 3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.model = "b.onnx"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000", 1000),
        ("512M", 512 << 20),
        ("2G", 2 << 30),
        ("1.5GiB", 3 << 29),
        ("64kB", 64 << 10),
        (" 1t ", 1 << 40),
    ],
)
def test_sizes(text: str, size: int, tmp_path: Path) -> None:
    assert parse_bytes("--workspace", text) == size
    file = tmp_path / "run.yaml"
    file.write_text(f"model: a\ninputs: b\nmemory-budget: {text}\n")
    assert resolve(CompareSettings, "compare", {}, file).memory_budget == size


@pytest.mark.parametrize("text", ["", "M", "0", "-1", "inf", "nan", "1X", "ten"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(UsageError, match="--workspace"):
        parse_bytes("--workspace", text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("precision", "foo"),
        ("fallback_precision", "int8"),
        ("weights", "x"),
        ("backend", "x"),
        ("keep_dtype", "x"),
    ],
)
def test_choices(name: str, value: str) -> None:
    flags: dict[str, Any] = {"model": "m", "inputs": "i", name: value}
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')}: unknown value '{value}'"):
        resolve(CompareSettings, "compare", flags, None)
