"""The GPU, as the CUDA driver tells."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from typing import Any

import pytest

from qdebug.backends.tensorrt.execute.device import Device, find_device
from qdebug.backends.tensorrt.library import LibraryKind
from qdebug.backends.tensorrt.probe import abilities, load_problem


class Driver:
    """A CUDA driver with `count` devices of compute capability 8.9."""

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

    def cuDeviceGetAttribute(self, value: Any, attribute: int, _: int) -> int:  # noqa: N802
        value._obj.value = {75: 8, 76: 9}[attribute]
        return 0


@pytest.mark.parametrize(
    ("driver", "found"),
    [
        (None, None),
        (Driver(0), None),
        (Driver(2, status=100), None),
        (Driver(2), Device("NVIDIA Test", (8, 9), 2)),
    ],
    ids=["no-driver", "no-device", "driver-fails", "two"],
)
def test_find_device(monkeypatch: pytest.MonkeyPatch, driver: Any, found: Device | None) -> None:
    def load(name: str) -> Any:
        if driver is None:
            raise OSError(name)
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)
    if found:
        assert find_device() == found
    else:
        assert isinstance(find_device(), str)  # why there is none


RTX, CLASSIC = LibraryKind.RTX, LibraryKind.CLASSIC
H200, ADA = Device("H200", (9, 0), 1), Device("RTX 4090", (8, 9), 1)


@pytest.mark.parametrize(
    ("kind", "version", "device", "named", "step"),
    [
        (RTX, (1, 7, 1), "no CUDA driver", "(no CUDA driver)", ""),
        (RTX, (1, 7, 1), H200, "compute capability 9.0", "tensorrt-rtx-cu13<1.7"),
        (RTX, (1, 6, 1), H200, "H200, without INT8", ""),
        (RTX, (1, 7, 1), ADA, "RTX 4090", ""),
        (CLASSIC, (10, 16, 1), H200, "H200", ""),
        (CLASSIC, (11, 4, 0), "no CUDA driver", "(no CUDA driver)", "tensorrt-rtx"),
    ],
)
def test_abilities(
    kind: LibraryKind, version: tuple[int, ...], device: Device | str, named: str, step: str
) -> None:
    text, hint = abilities(kind, version, device)
    assert named in text and step in hint and bool(hint) == bool(step)


def test_a_library_that_loads(rtx: object) -> None:
    assert load_problem(RTX) == ("", "")


@pytest.mark.skipif(find_spec("tensorrt") is not None, reason="TensorRT is installed")
def test_a_library_that_is_not_there() -> None:
    message, hint = load_problem(CLASSIC)
    assert message and "pip install tensorrt" in hint


def test_a_library_that_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qdebug.backends.tensorrt.process._CODE", "import os; os._exit(3)")
    assert "exit code 3" in load_problem(RTX)[0]
