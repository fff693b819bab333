"""Every setting that names a file to read takes what such a file holds, where Python has it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import onnx
import pytest
from onnxruntime import InferenceSession

import qdebug
from qdebug.config.commands import COMMANDS
from qdebug.config.flag import InPython, Setting, settings_of
from qdebug.testing.contract import network

ONLY_FILES = {
    ("inspect", "profile"),
    ("inspect", "timing"),
    ("inspect", "metadata"),
    ("inspect", "diff_profile"),  # of trtexec
    ("diff", "run"),  # with the activations, which a CompareResult does not hold
    ("diff", "other"),
    ("bisect", "profile_layers"),  # of trtexec, or a log
}
FILE_SETTINGS = [
    (command.name, setting)
    for command in COMMANDS.values()
    for setting in settings_of(command.settings)
    if setting.file
    and not setting.written
    and setting.name != "custom_op_library"  # the system's loader reads it
]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[Any]]]:
    """By what a setting takes: a file, and objects that hold the same."""
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QDEBUG_CACHE_DIR", str(folder / "cache"))
        proto = network()
        del proto.graph.output[1]
        onnx.save(proto, folder / "model.onnx")
        arrays = {"x": rng.normal(size=(24, 4)).astype(np.float32)}
        feeds = [{"x": row[None]} for row in arrays["x"]]
        np.savez(folder / "data.npz", **arrays)
        seen = {"inputs": arrays, "backend": "onnxruntime", "save_plan": folder / "plan.yaml"}
        result = qdebug.compare(folder / "model.onnx", output=folder / "run.h5", **seen)
        run = qdebug.load_run(folder / "run.h5")
        assert run.plan is not None
        found = qdebug.calibrate(proto, calib_data=arrays, method="minmax")
        found.save_scales(folder / "scales.yaml")
        amax = {name: entry.amax for name, entry in found.chosen.ranges.items()}
        qdebug.export(run.plan, model=folder / "model.onnx", output=folder / "qdq.onnx")
        name = proto.graph.output[0].name
        session = InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        outputs = {name: session.run(None, arrays)[0]}
        np.savez(folder / "framework.npz", **outputs)
        rows = [{name: row[None]} for row in outputs[name]]
        yield {
            "model": [folder / "model.onnx", proto],
            "data": [folder / "data.npz", arrays, feeds, lambda: iter(feeds)],
            "framework": [folder / "framework.npz", outputs, rows, lambda: iter(rows)],
            "plan": [folder / "plan.yaml", run.plan, run],
            "calibration": [folder / "scales.yaml", found, amax, run.plan, run],
            "run": [folder / "run.h5", result, run],
            "result": [folder / "run.h5", run],
            "quantized": [folder / "qdq.onnx", onnx.load(folder / "qdq.onnx")],
        }


def keywords(command: str, setting: str, given: dict[str, list[Any]], folder: Path) -> Any:
    """What the command needs beside the setting."""
    model, data, plan = (given[what][0] for what in ("model", "data", "plan"))
    both = {"model": model, "inputs": data, "batch_size": 1}
    found: dict[str, Any] = {
        "compare": both,
        "calibrate": {"model": model, "calib_data": data, "method": "minmax", "batch_size": 1},
        "ranges": {"source": model, "calib_data": data, "batch_size": 1},
        "bisect": {**both, "target": "output.sqnr_db>=60"},
        "repair": {
            "model": model,
            "calib_data": {"x": np.eye(12, 4, dtype="f")},
            "batch_size": 1,
            "inputs": {"x": 2 * np.eye(4, dtype="f")},
            "only": "bias-correction",
        },
        "sweep": {**both, "backend": "onnxruntime"},
        "check": {"model": model, "inputs": data},
        "init": {"model": model, "inputs": data, "output": folder / "qdebug.yaml", "force": True},
        "inspect": {"file": given["quantized"][0], "model": model},
        "view": {"files": given["run"][0], "browser": False},
        "report": {"runs": given["run"][0], "output": folder / "page.html", "force": True},
        "export": {"plan": plan, "model": model, "output": folder / "exported", "force": True},
    }[command]
    if setting == "reference" and command in ("compare", "sweep", "repair"):
        found["model"] = given["quantized"][0]
    if setting == "holdout":
        found["calib_data" if "calib_data" in found else "inputs"] = {"x": np.eye(4, dtype="f")}
    return {name: value for name, value in found.items() if name != setting}


def runs_shown(view: Any) -> Any:
    """The data of the page that is served."""
    with view, urlopen(view.url) as answer:
        page = answer.read().decode()
    (data,) = re.findall(r'id="page-data">(.*)</script>', page)
    return json.loads(data)["runs"]


SAID: dict[str, Callable[[Any], Any]] = {
    "BisectResult": lambda result: (result.pinned, result.cost),
    "CheckResult": lambda result: (result.inputs, result.ranges, result.findings),
    "InitResult": lambda result: [s for s in result.settings if s.key not in ("model", "inputs")],
}


def figures(result: Any) -> Any:
    """What a result must say, however the files were given."""
    match type(result).__name__:
        case "CompareResult":
            of_export = result.framework and result.framework.outputs
            return [(t.name, t.metrics) for t in result.tensors], of_export
        case "CalibrateResult" | "RangesResult":
            data = result.to_dict()
            return data.get("tensors"), data.get("methods"), data.get("cache_difference")
        case "BisectResult" | "CheckResult" | "InitResult":
            return SAID[type(result).__name__](result)
        case "RepairResult":
            proto = result.model_proto()
            del proto.metadata_props[:]  # for people they name the file
            record = replace(result.record(), told="")
            plain = proto.SerializeToString(deterministic=True)
            return result.baseline, result.proof, record, result.applied, plain
        case "SweepResult":
            return [row.execution.errors for row in result.combinations]
        case "InspectResult":
            audit, diff = result.audit, result.diff
            return result.info.layers, audit, diff and diff.values
        case "ReportResult" | "View":
            return runs_shown(result) if isinstance(result, qdebug.View) else result.runs
        case "ExportResult":
            return [path.read_bytes() for path in result.files]
    raise TypeError(type(result))


def kind_of(setting: Setting) -> str:
    """What a setting takes, by the first of the types of its objects."""
    (types,) = (part.types for part in setting.parts if isinstance(part, InPython))
    return {
        "onnx.ModelProto": "model",
        "Mapping": "data",
        "PrecisionPlan": "plan",
        "CalibrateResult": "calibration",
        "CompareResult": "run",
        "Run": "result",
    }[re.split(r"[\[ ]", types)[0]]


def test_what_has_no_type_in_memory_is_known() -> None:
    without = {(command, s.name) for command, s in FILE_SETTINGS if not s.takes_objects}
    assert without == ONLY_FILES


@pytest.mark.parametrize(
    ("command", "setting"),
    [entry for entry in FILE_SETTINGS if entry[1].takes_objects],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_an_object_is_as_its_file(
    command: str,
    setting: Setting,
    given: dict[str, list[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QDEBUG_CACHE_DIR", str(tmp_path / "cache"))
    beside = keywords(command, setting.name, given, tmp_path)
    file, *objects = given.get(setting.name, given[kind_of(setting)])
    if (command, setting.name) == ("calibrate", "from_cache"):
        objects = objects[:1]  # a dict names no methods, a plan others
    run = getattr(qdebug, command)
    expected = figures(run(**{setting.name: file}, **beside))
    assert objects
    for value in objects:
        assert figures(run(**{setting.name: value}, **beside)) == expected, type(value)
