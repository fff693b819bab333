"""doctor: what is there, what is missing, and what to do about it."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdebug.plan import quantize
from qdebug.run import doctor
from qdebug.run.doctor import OPTIONAL, REQUIRED, Finding, examine


def by_name() -> dict[str, Finding]:
    return {f.what: f for f in examine()}


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


def test_an_optional_package_under_any_of_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "tensorrt-cu12":
            return "10.9"
        if name.startswith(("tensorrt", "pycuda", "dask")):
            raise doctor.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(doctor, "version", version)
    found = by_name()
    assert found["tensorrt"].detail == "10.9"
    assert (found["pycuda"].state, found["pycuda"].detail) == ("ok", "installed")


def test_a_simulation_that_rounds_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize, "fake_quantize", lambda x, scale: x)
    finding = by_name()["Q/DQ simulation"]
    assert finding.state == "missing" and "onnxruntime" in finding.next_step


class Driver:
    """A CUDA driver with `count` devices."""

    def __init__(self, count: int, status: int = 0) -> None:
        self.count, self.status = count, status

    def cuInit(self, _: int) -> int:  # noqa: N802
        return self.status

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = self.count
        return 0

    def cuDeviceGetName(self, name: Any, size: int, _: int) -> int:  # noqa: N802
        name.value = b"NVIDIA Test"[: size - 1]
        return 0


@pytest.mark.parametrize(
    ("driver", "state", "detail"),
    [
        (None, "absent", "no CUDA driver"),
        (Driver(0), "absent", "no device"),
        (Driver(2, status=100), "absent", "no device"),
        (Driver(2), "ok", "2 × NVIDIA Test"),
    ],
    ids=["no-driver", "no-device", "driver-fails", "two"],
)
def test_gpu(monkeypatch: pytest.MonkeyPatch, driver: Any, state: str, detail: str) -> None:
    def load(name: str) -> Any:
        if driver is None:
            raise OSError(name)
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)
    finding = doctor._gpu()
    assert finding.state == state and detail in finding.detail


def test_values_are_plain() -> None:
    for finding in examine():
        assert all(isinstance(v, str) for v in vars(finding).values())
        assert not isinstance(finding.detail, np.generic)
