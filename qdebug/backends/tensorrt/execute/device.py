"""The GPU of this machine, as the CUDA driver itself reports it: no CUDA package is needed."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass

_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR (cuda.h)."""


@dataclass(frozen=True)
class Device:
    """The first GPU.

    Attributes:
        name: such as "NVIDIA H200".
        compute_capability: (major, minor).
        count: how many GPUs there are.
    """

    name: str
    compute_capability: tuple[int, int]
    count: int


def find_device() -> Device | str:
    """The first GPU, or why there is none."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if platform.system() == "Windows" else "libcuda.so.1")
    except OSError:
        return "no CUDA driver"
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return "a CUDA driver, but no device that it can use"
    if not count.value:
        return "a CUDA driver, but no device that it can use"
    name = ctypes.create_string_buffer(128)
    driver.cuDeviceGetName(name, 128, 0)
    major, minor = ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, 0)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, 0)
    return Device(name.value.decode(), (major.value, minor.value), count.value)
