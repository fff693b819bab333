"""Engines built by the real TensorRT for RTX, and executed by a fake, where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from qdebug.backends.tensorrt.backend import TensorRTBackend
from qdebug.backends.tensorrt.factory import EngineFactory
from qdebug.testing.tensorrt import fake_build, fake_maker


def execute_with_fake(
    monkeypatch: pytest.MonkeyPatch, build: Callable[..., Any] = fake_build
) -> None:
    """What is executed is made by `build`; what is audited stays real."""
    make = EngineFactory.make

    def faked(self: EngineFactory, proto: Any, **options: Any) -> Any:
        return make(replace(fake_maker(self.settings), build=build), proto, **options)

    monkeypatch.setattr(TensorRTBackend, "not_run", "")
    monkeypatch.setattr(EngineFactory, "make", faked)
