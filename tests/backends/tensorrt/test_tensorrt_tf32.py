"""The one setting that TensorRT for RTX reads from the environment."""

from __future__ import annotations

import os
from typing import Any

import pytest
from refusals import refused

from qdebug.backends.tensorrt.execute import tf32
from qdebug.testing.tensorrt import fake_library

NAME = "NVIDIA_TF32_OVERRIDE"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: Any) -> None:
    monkeypatch.setenv(NAME, "1")
    monkeypatch.setattr(tf32, "_settled", [])


def test_a_build_leaves_the_environment_as_it_was() -> None:
    with tf32.tf32_allowed(fake_library(), False):
        assert os.environ[NAME] == "0"
    assert os.environ[NAME] == "1"
    with tf32.tf32_allowed(fake_library(), True):
        assert NAME not in os.environ
    assert os.environ[NAME] == "1"


@pytest.mark.parametrize("first", [True, False])
def test_the_first_engine_decides(first: bool) -> None:
    tf32.settle_tf32(fake_library(), first)
    tf32.settle_tf32(fake_library(), first)
    assert os.environ.get(NAME) == (None if first else "0")
    with refused("QD-BACKEND-TF32-MIXED", "TF32"):
        tf32.settle_tf32(fake_library(), not first)
