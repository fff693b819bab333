"""A stage that fails takes nothing with it: table, JSON and files hold what the others measured."""

from __future__ import annotations

import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import h5py
import numpy as np
import pytest
from PIL import Image

import qdebug
from qdebug.cli.app import main
from qdebug.commands.compare import command
from qdebug.errors import BackendError, MetricError
from qdebug.network.samples import Batch
from qdebug.run.outputs import joined

NETWORK = Path(__file__).parents[1] / "producers" / "fp32.onnx"
DATA = Path(__file__).parents[2] / "calib_data" / "digits_holdout.npz"


def _raise(*_: Any, **__: Any) -> NoReturn:
    raise IndexError("tuple index out of range")


def _compared(**settings: Any) -> Any:
    return qdebug.compare(str(NETWORK), inputs=str(DATA), samples=8, **settings)


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    """What a comparison says in which nothing fails."""
    return dict(_compared().to_dict())


@pytest.mark.parametrize(
    ("function", "stage", "settings"),
    [
        ("scored", "metric", {"metric": "top1"}),
        ("ranked", "effects at the outputs", {}),
        ("explained", "causes", {}),
        ("summarized", "effect of the leading layers together", {}),
        ("with_remedies", "remedies", {"try_remedies": True}),
        ("plan_to_yaml", "save_plan", {"save_plan": "plan.yaml"}),
        ("to_records", "run file", {"output": "run.h5"}),
    ],
)
def test_a_defect_in_one_stage_of_compare(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    whole: dict[str, Any],
    function: str,
    stage: str,
    settings: dict[str, Any],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, function, _raise)
    result = _compared(**settings)
    (failure,) = result.failed
    assert failure.stage == stage and failure.code == "QD-INTERNAL"
    assert "IndexError: tuple index out of range" in failure.message
    assert not result.passed
    found = result.to_dict()
    assert found["tensors"] == whole["tensors"]
    by_name = {x["name"]: x["local_sqnr_db"] for x in whole["layers"]}
    assert {x["name"]: x["local_sqnr_db"] for x in found["layers"]} == by_name
    if stage != "effects at the outputs":
        assert all(x["effect"] for x in found["layers"] if x["precision"] == "int8")
    if stage != "causes":
        assert any(x["causes"] for x in found["layers"])
    assert not list(tmp_path.iterdir())  # what failed left nothing half-written


def test_everything_after_the_tensors_may_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for function in ("scored", "ranked", "explained", "summarized"):
        monkeypatch.setattr(command, function, _raise)
    monkeypatch.setattr("qdebug.commands.report.attached.write_page", _raise)
    code = main(
        [
            *("compare", str(NETWORK), "--inputs", str(DATA), "--samples", "8", "--metric", "top1"),
            *("-o", "run.h5", "--json", "result.json", "--html", "page.html"),
            *("--fail-on", "metric>=0.5", "--fail-on", "output.sqnr_db>=-10"),
        ]
    )
    assert code == 3
    out, err = capsys.readouterr()
    found = json.loads(Path("result.json").read_text())
    stages = [x["stage"] for x in found["failed"]]
    assert stages[:3] == ["metric", "effects at the outputs", "causes"]
    assert stages[-1] == "--html" and len(stages) == 5
    for stage in stages:
        assert f"internal error: {stage}: IndexError" in err
        assert f"Incomplete: {stage}: IndexError" in out
    assert "page.html" not in out  # it was not written, and so is not said to be
    assert "-vv" in err and "qdebug doctor" in err
    # A condition on what was not measured does not hold; the other is judged.
    assert [c["passed"] for c in found["verdict"]["conditions"]] == [False, True]
    with h5py.File("run.h5") as file:
        assert file.attrs["complete"]
        assert json.loads(file["results"][()])["tensors"] == found["tensors"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["result.json", "run.h5"]


@pytest.mark.parametrize("kept", [True, False])
def test_without_its_run_file_there_is_no_page_and_none_is_claimed(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kept: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "to_records", _raise)
    arguments = ["compare", str(NETWORK), "--inputs", str(DATA), "--samples", "8"]
    output = ["-o", "run.h5"] if kept else []
    assert main([*arguments, *output, "--html", "page.html", "--json", "x.json"]) == 3
    failed = json.loads(Path("x.json").read_text())["failed"]
    assert [x["stage"] for x in failed] == ["run file", "--html"]
    assert "Wrote page.html" not in capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_the_traceback_is_shown_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "explained", _raise)
    arguments = ["compare", str(NETWORK), "--inputs", str(DATA), "--samples", "4"]
    assert main([*arguments, "--no-progress"]) == 3
    assert "Traceback" not in capsys.readouterr().err
    assert main([*arguments, "--no-progress", "-vv"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_a_runtime_that_fails_late_keeps_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> NoReturn:
        raise BackendError("no kernel", "Take another.", code="QD-BACKEND-NO-KERNEL")

    monkeypatch.setattr(command, "explained", fails)
    (failure,) = _compared().failed
    assert (failure.code, failure.message, failure.hint, failure.exit_code) == (
        "QD-BACKEND-NO-KERNEL",
        "no kernel",
        "Take another.",
        3,
    )


def test_an_interrupt_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "explained", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _compared()


_COMMANDS: dict[str, list[str]] = {
    "calibrate": ["--calib-data", str(DATA), "--samples", "8", "-o", "out.yaml"],
    "bisect": ["--inputs", str(DATA), "--samples", "8", "--target", "output.sqnr_db>=10"],
    "inspect": [],
}


@pytest.mark.parametrize("name", _COMMANDS)
def test_a_page_that_fails_is_all_that_is_lost(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("qdebug.commands.report.attached.write_page", _raise)
    arguments = [name, str(NETWORK), *_COMMANDS[name], "--html", "page.html", "--json", "x.json"]
    assert main(arguments) == 3
    out, err = capsys.readouterr()
    assert NETWORK.name in out and "internal error: --html: IndexError" in err
    assert "page.html" not in out
    (failed,) = json.loads(Path("x.json").read_text())["failed"]
    assert failed["stage"] == "--html"


def test_outputs_of_two_shapes_are_refused() -> None:
    """Where it is not known which sample's they are. Of one sample each they are scored by
    themselves."""
    several = {Batch(i, 4 * i, 4): {"y": np.zeros((1, 5 + i, 7), np.float32)} for i in range(2)}
    with pytest.raises(MetricError, match="shape of output 'y' differs"):
        joined(several)
    shapes = ((1, 4), (2, 4), (1, 5))
    single = {Batch(i, i, 1): {"y": np.zeros(x, np.float32)} for i, x in enumerate(shapes)}
    assert [x.shape for x in joined(single)["y"]] == [*shapes]


@pytest.mark.parametrize(
    ("module", "name", "settings"),
    [
        ("qdebug.commands.calibrate.command", "calibrate", {"calib_data": "pics"}),
        ("qdebug.commands.bisect", "bisect", {"inputs": "pics", "target": "output.cosine>=0"}),
    ],
)
def test_pictures_that_are_gone_after_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, name: str, settings: Any
) -> None:
    """How they were read was looked at before: what was measured is shown."""
    monkeypatch.chdir(tmp_path)
    Path("pics").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 8), dtype=np.uint8)
    for number, values in enumerate(pixels):
        Image.fromarray(values).save(f"pics/{number}.png")
    run = getattr(import_module(module), name)

    def measured(*given: Any) -> Any:
        result = run(*given)
        shutil.rmtree("pics")
        return result

    monkeypatch.setattr(import_module(module), name, measured)
    result = getattr(qdebug, name)(str(NETWORK), **settings)
    assert result.data[0].told.startswith("8 pictures")
