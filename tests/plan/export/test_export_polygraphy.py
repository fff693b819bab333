"""The postprocessing script, called by Polygraphy on what TensorRT's parser makes of the model."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LONG = "long" * 75


def commands(path: Path) -> list[list[str]]:
    """The command lines in the script's comments: explicit, RTX, implicit."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [line.removeprefix("#   ") for line in lines if line.startswith("#   ")]
    return [shlex.split(line) for line in found if "polygraphy convert" in line]


def postprocessed(path: Path, network: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The network after Polygraphy ran the script on it."""
    import tensorrt_rtx
    from polygraphy.backend.common import InvokeFromScript

    monkeypatch.setitem(sys.modules, "tensorrt", tensorrt_rtx)  # for its enumerations
    InvokeFromScript(str(path), name="postprocess")(network=network)
    return network


def test_every_layer_of_a_pinned_node_is_constrained(
    all_pinned: Any,
    write: Any,
    network: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(all_pinned, "polygraphy")
    parsed = network(all_pinned.model.file.path)
    done = postprocessed(tmp_path / "precision_polygraphy.py", parsed, monkeypatch)
    expected = dict.fromkeys(["c1", "r1", "c2", "n2", "s", "r2", "c4", "p", "f"], "FLOAT")
    # A Gemm becomes a matrix product and an addition; both are constrained.
    assert done.precisions == expected | {"c3": "HALF", "fc_output": "FLOAT", "o": "FLOAT"}
    free = {x.outputs[0].name for x in done.layers if x.precision is not None and not x.types}
    assert free == {"o", "fc_output"}  # an INT8 layer reads what the Gemm writes
    assert capsys.readouterr().err == ""
    typed = {x.outputs[0].name: x.types[0].name for x in done.layers if x.types}
    assert typed == {t: p for t, p in done.precisions.items() if t not in free}
    assert [x.name for x in done.layers if x.name == LONG]


def test_the_models_outputs_keep_their_type(
    cnn: Path,
    plan_for: Any,
    write: Any,
    network: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    write(plan_for(cnn, {"/classifier/Gemm": "fp16"}), "polygraphy")
    path = tmp_path / "precision_polygraphy.py"
    done = postprocessed(path, network(cnn), monkeypatch)
    types = {x.outputs[0].name: x.types[0].name for x in done.layers if x.types}
    assert types["/classifier/Gemm_output"] == "HALF" and types["logits"] == "FLOAT"
    assert done.precisions["logits"] == "HALF"


def test_nodes_that_the_network_does_not_have_are_named(
    all_pinned: Any,
    write: Any,
    network: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(all_pinned, "polygraphy")
    parsed = network(all_pinned.model.file.path)
    parsed.layers = [x for x in parsed.layers if x.name not in ("pool", "node_of_c1")]
    postprocessed(tmp_path / "precision_polygraphy.py", parsed, monkeypatch)
    assert capsys.readouterr().err.endswith("not constrained: node_of_c1, pool\n")


def test_polygraphy_understands_the_command_lines(
    cnn: Path, plan_for: Any, write: Any, tmp_path: Path
) -> None:
    from polygraphy.tools.args import TrtConfigArgs, TrtLoadNetworkArgs
    from polygraphy.tools.convert import Convert

    pins = {"/stem/conv/Conv": "fp16", "/classifier/Gemm": "fp32"}
    write(plan_for(cnn, pins), "polygraphy")
    path = tmp_path / "precision_polygraphy.py"
    explicit, _, implicit = commands(path)

    def parse(words: list[str]) -> Any:
        tool, parser = Convert(), argparse.ArgumentParser()
        tool.setup_parser(parser.add_subparsers())
        args = parser.parse_args(words[1:])
        for group in tool.arg_groups.values():
            group.parse(args)
        return tool.arg_groups

    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        groups = parse(implicit)
        network, config = groups[TrtLoadNetworkArgs], groups[TrtConfigArgs]
        assert network.postprocess_scripts == [(path.name, "postprocess")]
        assert (config.int8, config.fp16, config.precision_constraints) == (True, True, "obey")
        assert Path(config.calibration_cache).is_file() and Path(implicit[2]).is_file()
        assert parse(explicit)[TrtLoadNetworkArgs].strongly_typed
    finally:
        os.chdir(before)


def test_polygraphy_builds_with_tensorrt_for_rtx(
    cnn: Path, plan_for: Any, write: Any, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    write(plan_for(cnn, {"/stem/conv/Conv": "fp16"}), "polygraphy")
    _, (setting, _, *words), _ = commands(tmp_path / "precision_polygraphy.py")
    name, value = setting.split("=")
    command = [str(Path(sys.executable).with_name("polygraphy")), *words]
    env = {**os.environ, name: value}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "model.engine").stat().st_size > 10_000
