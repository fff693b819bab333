"""Engines built by the real TensorRT for RTX, and executed by a fake, where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from qdebug.backends.tensorrt import process
from qdebug.backends.tensorrt.backend import TensorRTBackend, open_runtime
from qdebug.backends.tensorrt.factory import EngineFactory
from qdebug.backends.tensorrt.library import LibraryKind
from qdebug.testing.tensorrt import fake_build, fake_maker


def in_this_process(**settings: Any) -> TensorRTBackend:
    """What `process.open_rtx` has a process of its own for."""
    settings.pop("build_timeout", None)
    return open_runtime(LibraryKind.RTX, **settings)


def execute_with_fake(
    monkeypatch: pytest.MonkeyPatch, build: Callable[..., Any] = fake_build
) -> None:
    """What is executed is made by `build`; what is audited stays real. All in this process."""
    make = EngineFactory.make

    def faked(self: EngineFactory, proto: Any, **options: Any) -> Any:
        return make(replace(fake_maker(self.settings), build=build), proto, **options)

    monkeypatch.setattr(process, "open_rtx", in_this_process)
    monkeypatch.setattr(TensorRTBackend, "not_run", "")
    monkeypatch.setattr(EngineFactory, "make", faked)
