"""doctor: what is there, what is missing, and what to do about it."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from qdebug.backends import doctor
from qdebug.backends.doctor import OPTIONAL, REQUIRED, Finding, examine
from qdebug.backends.registry import DEFAULT, BackendSpec, specs
from qdebug.backends.tensorrt import probe
from qdebug.backends.tensorrt.execute.device import Device
from qdebug.formats.integer import IntegerFormat


def by_name() -> dict[str, Finding]:
    return {f.what: f for f in examine().findings}


def test_this_machine() -> None:
    found = by_name()
    assert found["machine"].state == found["Python"].state == "ok"
    for name in REQUIRED:
        assert found[name].state == "ok" and found[name].detail[0].isdigit(), name
    assert found["Q/DQ simulation"].state == "ok"
    assert {f.state for f in found.values()} <= {"ok", "absent"}
    assert all(f.next_step for f in found.values() if f.what in dict_of_optional() and
               f.state == "absent")  # fmt: skip


def dict_of_optional() -> set[str]:
    return {module for module, _, _ in OPTIONAL}


def test_required_are_the_dependencies_of_the_project() -> None:
    path = Path(__file__).parents[2] / "pyproject.toml"
    declared = tomllib.loads(path.read_text())["project"]["dependencies"]
    assert {re.split(r"[<>=\[ ]", d)[0] for d in declared} == set(REQUIRED)


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor.version

    def version(name: str) -> str:
        if name == "onnxruntime":
            raise doctor.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(doctor, "version", version)
    found = by_name()
    assert found["onnxruntime"].state == "missing"
    assert found["onnxruntime"].next_step == "pip install onnxruntime"
    assert "Q/DQ simulation" not in found  # it cannot be tried without


def test_optional_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = by_name()
    for module, _, step in OPTIONAL:
        assert found[module] == Finding(module, "absent", "not installed", step)


def test_every_backend_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = by_name()
    for spec in specs():
        if spec.name != DEFAULT:
            assert (found[f"backend {spec.name}"].state == "ok") <= spec.installed
    monkeypatch.setattr(BackendSpec, "installed", False)
    missing = {f.what: f.next_step for f in examine().findings if f.what.startswith("backend ")}
    assert missing == {f"backend {s.name}": s.install for s in specs() if s.name != DEFAULT}


def test_an_optional_package_under_any_of_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "tensorrt-cu12":
            return "10.9"
        if name.startswith(("tensorrt", "pycuda")):
            raise doctor.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setattr(probe, "load_problem", lambda kind: ("", ""))
    for module in (doctor, probe):
        monkeypatch.setattr(module, "find_device", lambda: Device("a GPU", (8, 9), 1))
    found = by_name()
    assert found["backend tensorrt"].detail == (
        "10.9: builds and runs engines on a GPU (compiles engines, tells each layer's precision, "
        "measures each layer's time; FP32, FP16, BF16, FP8, INT8)"
    )
    assert (found["pycuda"].state, found["pycuda"].detail) == ("ok", "installed")


def test_a_simulation_that_rounds_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IntegerFormat, "quantize", lambda self, x, scale: x)
    finding = by_name()["Q/DQ simulation"]
    assert finding.state == "missing" and "onnxruntime" in finding.next_step


def test_a_library_that_is_installed_and_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(doctor, "version", lambda name: "1.2")
    monkeypatch.setattr(probe, "load_problem", lambda kind: (f"{kind} is broken", "mend it"))
    finding = by_name()["backend tensorrt-rtx"]
    assert (finding.state, finding.next_step) == ("absent", "mend it")
    assert finding.detail.startswith("1.2: tensorrt-rtx is broken")


@pytest.mark.parametrize(
    ("device", "state", "detail"),
    [
        ("no CUDA driver", "absent", "no CUDA driver: engines can be built"),
        (Device("NVIDIA Test", (9, 0), 2), "ok", "2 × NVIDIA Test, compute capability 9.0"),
    ],
    ids=["none", "two"],
)
def test_gpu(
    monkeypatch: pytest.MonkeyPatch, device: Device | str, state: str, detail: str
) -> None:
    monkeypatch.setattr(doctor, "find_device", lambda: device)
    finding = by_name()["NVIDIA GPU"]
    assert finding.state == state and finding.detail.startswith(detail)


def test_values_are_plain() -> None:
    for finding in examine().findings:
        assert all(isinstance(v, str) for v in vars(finding).values())
        assert not isinstance(finding.detail, np.generic)
