"""doctor, the demo on the bundled digits, and configurations on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from qdebug.backends.doctor import DoctorResult, Finding
from qdebug.cli import arguments
from qdebug.config.commands import COMMANDS, Command

commands = pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda c: c.name)


def test_doctor(desk: Any) -> None:
    done = desk.spawn("doctor")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[-1].startswith("Ready: every command")
    for what in ("onnxruntime", "Q/DQ simulation", "NVIDIA GPU", "tensorrt-rtx"):
        assert any(what in line for line in lines)
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize(
    ("state", "says"),
    [("ok", "every command runs here"), ("absent", "every command but sweep, which builds")],
)
def test_doctor_knows_what_needs_tensorrt(
    desk: Any, monkeypatch: pytest.MonkeyPatch, state: str, says: str
) -> None:
    found = (Finding("machine", "ok", "a laptop"), Finding("backend tensorrt-rtx", state, "…"))
    monkeypatch.setattr("qdebug.backends.doctor.examine", lambda: DoctorResult(found))
    assert says in desk.run("doctor").out


def test_doctor_json(desk: Any, load_json: Any) -> None:
    found = desk.run("doctor", "--json", "-").json
    assert (found["schema"], found["ready"]) == ("qdebug.doctor/1", True)
    for finding in found["findings"]:
        assert set(finding) == {"what", "state", "detail", "next_step"}
        assert finding["state"] in ("ok", "missing", "absent")
        assert finding["state"] != "missing" or finding["next_step"]
    assert desk.run("doctor", "--json", "doctor.json").out
    assert load_json(Path("doctor.json").read_text())["findings"] == found["findings"]
    desk.refused(
        "doctor", "--json", "no/where.json", says=["QD-STORE-OUTPUT-PATH", "--json: no/where.json"]
    )


def test_doctor_names_what_is_missing(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Finding("onnx", "missing", "not installed", "pip install onnx")
    monkeypatch.setattr("qdebug.backends.doctor.examine", lambda: DoctorResult((gone,)))
    done = desk.run("doctor")
    assert "pip install onnx" in done.out
    assert desk.run("doctor", "--json", "-").json["ready"] is False


def test_version(desk: Any) -> None:
    done = desk.run("--version")
    assert done.code == 0 and done.out.startswith("qdebug ")


def test_demo_on_digits(desk: Any, digits: Path) -> None:
    """As scripts/demo runs it: INT8 with one scale per weight really loses accuracy."""
    done = desk.spawn(
        *["compare", digits / "digits_cnn.onnx", "--inputs", digits / "digits_holdout.npz"],
        *["--calib-data", digits / "digits_calib.npz", "--weights", "per-tensor"],
        *["--metric", "top1", "--output", "digits.h5", "--json", "digits.json"],
        "--no-progress",  # which a busy machine prints after 30 s
    )
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-2] == "Run file: digits.h5" and Path("digits.h5").exists()
    assert "0.9860" in done.out and "depthwise" in done.out


def test_per_channel_weights_cure_the_digits(desk: Any, digits: Path) -> None:
    args = (
        *["compare", digits / "digits_cnn.onnx", "--inputs", digits / "digits_holdout.npz"],
        *["--calib-data", digits / "digits_calib.npz", "--metric", "top1", "--json", "-"],
        *["--effect", "none"],
    )
    broken = desk.run(*args, "--weights", "per-tensor").json["metric"]
    cured = desk.run(*args).json["metric"]
    assert broken["reference"] == cured["reference"] > 0.97
    assert broken["reference"] - broken["candidate"] > 0.1
    assert cured["reference"] - cured["candidate"] < 0.01


def test_configuration_with_a_flag_on_top(desk: Any) -> None:
    desk.write(
        "run.yaml",
        "model: net.onnx\ninputs: data.npz\nprecision: int8\nfail-on: [output.sqnr_db>=200]\n",
    )
    assert desk.run("compare", "--config", "run.yaml").code == 1
    done = desk.run("compare", "--config", "run.yaml", "--precision", "fp32", "--json", "-")
    assert done.code == 0 and done.json["precision"] == "fp32"
    gate = ("--fail-on", "output.cosine>=0.1")
    assert desk.run("compare", "--config", "run.yaml", *gate).code == 0


def test_top_limits_the_table(desk: Any) -> None:
    out = desk.compare("--top", "2").out
    assert "\n2 " in out and "\n3 " not in out


def test_odd_names_are_shown_as_they_are(desk: Any, cnn: Any) -> None:
    odd = {
        "conv1": "[red]first[/red]",
        "relu1": "",
        "conv2": "/a:b;c",
        "add": "/a:b;c",
        "fc": "слой/" + "x" * 300,
        "pool": "line\nbreak\x1b[31m",
    }
    desk.save(cnn(names=odd))
    done = desk.compare("-o", "run.h5", "--keep", "all")
    assert done.code == 0, done.err
    for name in ("[red]first[/red]", "/a:b;c", "слой/" + "x" * 300):
        assert name in done.out
    assert "\x1b" not in done.out
    names = {x["name"] for x in desk.result()["layers"]}
    assert {"[red]first[/red]", "/a:b;c", odd["fc"], odd["pool"]} <= names


ALLOWED = ("--allow-unquantized",)


def test_models_with_little_in_them(desk: Any, make: Any) -> None:
    """No layer, an output that is an input, only whole numbers: shown, not a crash."""
    import numpy as np
    from onnx import TensorProto, helper

    identity = helper.make_node("Identity", ["x"], ["y"], "same")
    desk.save(make([identity], {"x": ("N", 4)}, {"y": ("N", 4)}), "identity.onnx")
    argmax = helper.make_node("ArgMax", ["x"], ["i"], "best", axis=1)
    whole = make([argmax], {"x": ("N", 4)}, {"i": ("N", 1)})
    whole.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    desk.save(whole, "argmax.onnx")
    desk.data("four.npz", x=np.eye(4, dtype=np.float32))
    for model in ("identity.onnx", "argmax.onnx"):
        for precision in ("int8", "fp16"):
            done = desk.run(
                "compare", model, "--inputs", "four.npz", "--precision", precision, *ALLOWED
            )
            assert done.code == 0, done.err
    gate = ("--fail-on", "output.cosine>=0.9", "--json", "-", *ALLOWED)
    done = desk.run("compare", "argmax.onnx", "--inputs", "four.npz", *gate)
    (condition,) = done.json["verdict"]["conditions"]
    assert done.code == 1 and condition["value"] is None and condition["passed"] is False


# ---- help texts


def _help(desk: Any, *arguments: str) -> str:
    done = desk.run(*arguments)
    assert (done.code, done.err) == (0, "")
    return str(done.out)


def _flags(text: str) -> list[str]:
    """The flags that a help text lists, in its order."""
    return re.findall(r"^│ (--[a-z][\w-]*)", text, re.MULTILINE)


@commands
def test_everything_is_listed_and_what_matters_first(
    desk: Any, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = _help(desk, command.name, "--help-all")
    assert all(len(line) <= 80 for line in text.splitlines())
    found = _flags(text)
    known = {s.name: s.flag for s in command.declared if not s.positional}
    assert sorted(found) == sorted(known.values())
    assert len(command.first) <= 6
    assert found[: len(command.first)] == [known[name] for name in command.first]
    assert len(known) < 8 or command.first


@commands
def test_help_fits_60_lines_and_says_how_to_see_the_rest(
    desk: Any, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = _help(desk, command.name, "--help")
    assert len(text.splitlines()) <= 60
    known = {s.name: s.flag for s in command.declared if not s.positional}
    hidden = len(known) - len(_flags(text))
    assert set(_flags(text)) >= {known[name] for name in command.first}
    assert not hidden or f"{hidden} more flags: qdebug {command.name} --help-all" in text


@commands
def test_flags_are_understood_with_their_values_apart_or_joined(command: Command) -> None:
    """All flags together, and each of them alone."""
    flags = [s for s in command.declared if not s.positional]
    bare = {s.name for s in flags if s.is_switch or s.counts}
    apart = {s.name: [s.flag] if s.name in bare else [s.flag, "7"] for s in flags}
    joined = {s.name: [s.flag] if s.name in bare else [f"{s.flag}=7"] for s in flags}

    def understood(lines: Iterable[list[str]]) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def run(_: Command, given: Mapping[str, Any]) -> int:
            found.update({k: v for k, v in given.items() if v is not None})
            return 0

        words = [command.name, *chain.from_iterable(lines)]
        arguments.app_of(words, run)(words)
        return found

    together = understood(apart.values())
    assert together.keys() == apart.keys() and understood(joined.values()) == together
    for name in list(joined)[:5]:
        assert understood([joined[name]]) == {name: together[name]}
