"""Settings are checked before anything is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from refusals import refused

from qdebug.backends.tensorrt.build import settings as settings_module
from qdebug.backends.tensorrt.build.build import build_engine
from qdebug.backends.tensorrt.build.settings import (
    BuildSettings,
    ShapeRange,
    check_settings,
    parse_compute_capability,
    profile_for,
)
from qdebug.backends.tensorrt.execute.device import Device
from qdebug.backends.tensorrt.library import Library
from qdebug.types import TensorSpec

PLAIN = BuildSettings(compute_capabilities=((8, 9),))
CAPABILITY = "QD-USAGE-COMPUTE-CAPABILITY"


@pytest.mark.parametrize(("text", "found"), [("8.9", (8, 9)), (" 12.0 ", (12, 0))])
def test_compute_capability(text: str, found: tuple[int, int]) -> None:
    assert parse_compute_capability(text) == found


@pytest.mark.parametrize("text", ["", "8", "sm89", "8.9.1", "-8.9", "8.90", "a.b"])
def test_no_compute_capability(text: str) -> None:
    with refused("QD-USAGE-COMPUTE-CAPABILITY"):
        parse_compute_capability(text)


FLOAT = np.dtype(np.float32)


def test_a_profile_admits_all_shapes() -> None:
    inputs = [TensorSpec("image", ("N", 3, None), FLOAT), TensorSpec("fixed", (2,), FLOAT)]
    shapes = [{"image": (4, 3, 50)}, {"image": (1, 3, 80), "label": (1,)}, {"image": (8, 3, 60)}]
    assert profile_for(inputs, shapes) == {
        "image": ShapeRange(min=(1, 3, 50), opt=(4, 3, 50), max=(8, 3, 80))
    }


def test_a_profile_needs_shapes() -> None:
    inputs = [TensorSpec("image", ("N", 3), FLOAT)]
    with refused("QD-USAGE-NO-SHAPES", "'image'"):
        profile_for(inputs, [{"other": (1, 3)}])
    with refused("QD-USAGE-SHAPES-DIFFER", "'image'", " 2 "):
        profile_for(inputs, [{"image": (3,)}])


@pytest.mark.parametrize(
    ("settings", "code", "says"),
    [
        (BuildSettings(compute_capabilities=((9, 0),)), CAPABILITY, ["9.0", "8.9, 12.0", "1.6"]),
        (BuildSettings(compute_capabilities=((8, 9), (3, 5))), CAPABILITY, ["3.5"]),
        (
            replace(PLAIN, tactic_sources=("CUDNN",)),
            "QD-USAGE-TACTIC-SOURCE",
            ["'CUDNN'", "JIT_CONV"],
        ),
        (replace(PLAIN, plugins=(Path("no.so"),)), "QD-USAGE-PLUGIN", ["no.so"]),
    ],
)
def test_what_tensorrt_for_rtx_does_not_have(
    rtx: Library, settings: BuildSettings, code: str, says: list[str]
) -> None:
    with refused(code, *says):
        check_settings(rtx, settings)


def test_no_gpu_to_build_for(rtx: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_module, "find_device", lambda: "no CUDA driver")
    with refused("QD-USAGE-NO-GPU"):
        check_settings(rtx, BuildSettings())
    monkeypatch.setattr(settings_module, "find_device", lambda: Device("a GPU", (8, 9), 1))
    check_settings(rtx, BuildSettings())


def test_compute_capabilities_are_those_of_the_library(rtx: Library) -> None:
    assert {(8, 0), (8, 6), (8, 9), (12, 0)} <= set(rtx.compute_capabilities)
    assert (9, 0) not in rtx.compute_capabilities


def test_a_file_that_is_no_plugin(
    rtx: Library, one_node: Callable[..., onnx.ModelProto], tmp_path: Path
) -> None:
    plugin = tmp_path / "plugin.so"
    plugin.write_text("no shared object")
    with refused("QD-USAGE-PLUGIN", "plugin.so"):
        build_engine(rtx, one_node("Relu"), replace(PLAIN, plugins=(plugin,)))
