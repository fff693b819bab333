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


def test_every_layer_is_constrained(
    all_pinned: Any, write: Any, network: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(all_pinned, "polygraphy")
    parsed = network(tmp_path / "precision.implicit.onnx")
    done = postprocessed(tmp_path / "precision_polygraphy.py", parsed, monkeypatch)
    written = dict.fromkeys(["r1", "r2", "c4", "p", "f", "o"], "FLOAT") | {"c3": "HALF"}
    # A Gemm becomes a matrix product and an addition; both are constrained.
    inside = dict.fromkeys(["c1", "n2", "s", "fc_output"], "FLOAT")
    assert done.precisions == written | inside | {"out": "INT8"}
    typed = {x.outputs[0].name: x.types[0].name for x in done.layers if x.types}
    assert typed == written | {"out": "FLOAT"}  # the model's output
    # All that the INT8 layer reads and writes, its weights too, and nothing else.
    tensors = {t.name: t.amax for x in done.layers for t in x.outputs if t.amax is not None}
    assert tensors.keys() == {"o", "out", "w4_output"} and tensors["o"] == pytest.approx(4)


def test_a_network_of_another_model_is_refused(
    all_pinned: Any, write: Any, network: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(all_pinned, "polygraphy")
    parsed = network(tmp_path / "precision.implicit.onnx")
    parsed.layers = [x for x in parsed.layers if x.name != "pool"]
    with pytest.raises(SystemExit, match=r"parsed another network: .* for pool"):
        postprocessed(tmp_path / "precision_polygraphy.py", parsed, monkeypatch)


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
        assert config.trt_config_postprocess_script == path.name
        assert not config.int8  # Polygraphy would calibrate
        assert Path(implicit[2]).is_file()
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
