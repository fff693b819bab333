"""`qdebug init`: what it writes runs at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

import qdebug
import qdebug.commands.init as init_command


def test_what_is_written_is_run(desk: Any, pictures: Any) -> None:
    desk.data("data.npz", x=pictures(24), labels=np.arange(24) % 5)
    done = desk.run("init", "net.onnx", "data.npz", "--metric", "agreement")
    assert done.code == 0 and "Next: qdebug compare --config qdebug.yaml" in done.out
    written = yaml.safe_load(Path("qdebug.yaml").read_text())
    assert written["inputs"] == "data.npz" and "calib-data" not in written
    assert written["metric"] == "agreement" and written["fail-on"] == ["metric>=0.9583"]
    run = desk.run("compare", "--config", "qdebug.yaml", "--json", "-")
    assert run.code in (0, 1) and run.json["samples"] == 24
    desk.refused("init", "net.onnx", "data.npz", says=["QD-STORE-OUTPUT-EXISTS"])
    lines = [
        line[4:] for line in Path("qdebug.yaml").read_text().splitlines() if "#   qdebug" in line
    ]
    assert [line.split()[1] for line in lines] == ["compare", "check", "repair"]


def test_pictures_without_labels(desk: Any, cnn: Any) -> None:
    rng = np.random.default_rng(0)
    Path("pics").mkdir()
    for number in range(9):
        pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"pics/{number}.png")
    desk.run("init", "net.onnx", "pics", "-o", "own.yaml")
    text = Path("own.yaml").read_text()
    assert "a guess" in text and "# preprocess: imagenet" in text
    assert yaml.safe_load(text)["metric"] == "agreement"
    assert desk.run("compare", "--config", "own.yaml").code in (0, 1)


def test_a_model_that_is_not_in_fp32(desk: Any, digits: Path) -> None:
    """It is compared as it is: nothing is calibrated, and the gate is not its own score."""
    scenes = digits / "scenes" / "test"
    assert desk.run("init", digits / "digits_detector_int8.onnx", scenes).code == 0
    text = Path("qdebug.yaml").read_text()
    assert {"calib-data", "precision", "fail-on"}.isdisjoint(yaml.safe_load(text))
    assert "The quantized model" in text and "# reference: fp32.onnx" in text
    assert desk.run("compare", "--config", "qdebug.yaml", "--effect", "none").code == 0


def test_a_model_alone(desk: Any) -> None:
    assert desk.run("init", "net.onnx").code == 0
    assert yaml.safe_load(Path("qdebug.yaml").read_text())["model"] == "net.onnx"


@pytest.mark.parametrize(
    ("all_s", "told"), [(60.0, "on 500 samples"), (0.0, "on 16 samples of 500")]
)
def test_the_bound_is_of_all_samples_where_there_is_time(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, all_s: float, told: str
) -> None:
    monkeypatch.setattr(init_command, "_SCORED", 16)
    monkeypatch.setattr(init_command, "_ALL_S", all_s)
    net, data = digits / "digits_cnn.onnx", digits / "digits_holdout.npz"
    written = qdebug.init(net, inputs=data, metric="top1", output=tmp_path / "q.yaml")
    of = {x.key: x for x in written.settings}
    assert told in of["metric"].why
    value = float(of["metric"].why.partition(": ")[2].split()[0])
    drop = max(0.01, 1 / int(told.split()[1]))
    bound = float(of["fail-on"].value.partition(">=")[2].rstrip('"]'))
    assert bound == pytest.approx(value - drop, abs=2e-4)


@pytest.mark.parametrize(("folders", "wrong"), [("0 90 180 270 360", 0), ("0 90 180", 2)])
def test_folders_that_are_no_classes_of_the_network(desk: Any, folders: str, wrong: int) -> None:
    """A gate at chance level, of labels that check calls certainly wrong, was written silently."""
    rng = np.random.default_rng(0)
    for name in folders.split():
        Path("pics", name).mkdir(parents=True)
        for number in range(4):
            pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(f"pics/{name}/{number}.png")
    done = desk.run("init", "net.onnx", "pics", "--metric", "top1", "--json", "init.json")
    assert done.code == 0
    kinds = {finding["kind"] for finding in json.loads(Path("init.json").read_text())["findings"]}
    text, shown = Path("qdebug.yaml").read_text(), " ".join(done.out.split())
    written = yaml.safe_load(text)
    assert ("label-range" in kinds) == bool(wrong)
    assert ("fail-on" in written) == (not kinds) and written["metric"] == "top1"
    assert ("Wrong: 8 of 12 labels are no class of the network" in shown) == bool(wrong)
    advice = "The names of the 3 folders were taken for class numbers: name the folders by"
    checked = desk.run("check", "net.onnx", "--inputs", "pics")
    for said in (shown, " ".join(checked.out.split())):
        assert (advice in said) == bool(wrong)
    assert (checked.code == 1) == bool(wrong)
    if wrong:
        assert "mend this first, and run `qdebug init` again" in " ".join(text.split("\n# "))
    else:
        assert "numbered from 0 in the order 0, 90, 180, 270, 360" in text
