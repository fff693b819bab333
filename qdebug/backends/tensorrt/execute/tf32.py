"""Whether FP32 is computed in TF32, for real.

TensorRT for RTX computes FP32 in TF32 whatever BuilderFlag.TF32 says; what it obeys is the
environment variable NVIDIA_TF32_OVERRIDE. Seen with 1.6.1 on an H100, a CNN against FP32 on the
CPU: 66 dB with the flag and without it, 119 dB with NVIDIA_TF32_OVERRIDE=0. The variable must be
the same when an engine is built and when it is made ready to execute, or TensorRT refuses; and the
first engine that a process executes decides for all: TF32 allowed after TF32 forbidden was at
115 dB.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

from qdebug.backends.tensorrt.library import Library
from qdebug.errors import BackendError

_NAME = "NVIDIA_TF32_OVERRIDE"
_lock = RLock()
_settled: list[bool] = []


@contextmanager
def tf32_allowed(library: Library, allowed: bool) -> Iterator[None]:
    """While an engine is built in the block, it may be made to compute FP32 in TF32, or may not."""
    if not library.rtx:
        yield
        return
    with _lock:
        before = os.environ.get(_NAME)
        _set(allowed)
        try:
            yield
        finally:
            if before is None:
                os.environ.pop(_NAME, None)
            else:
                os.environ[_NAME] = before


def settle_tf32(library: Library, allowed: bool) -> None:
    """Have this process execute engines that were built with TF32 allowed, or those that were not.

    Raises:
        BackendError: it executes the others already.
    """
    if not library.rtx:
        return
    with _lock:
        if not _settled:
            _settled.append(allowed)
        if _settled[0] != allowed:
            now, asked = ("with", "without") if _settled[0] else ("without", "with")
            raise BackendError(
                f"this process executes engines {now} TF32 already, and {library.name} cannot "
                f"execute others {asked} it",
                "Use one process for each.",
                code="QD-BACKEND-TF32-MIXED",
            )
        _set(allowed)


def _set(allowed: bool) -> None:
    if allowed:
        os.environ.pop(_NAME, None)
    else:
        os.environ[_NAME] = "0"
