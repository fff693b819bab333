"""Fixtures for all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# No deadline, and no limit on drawing examples: a busy machine is no failure. The same examples in
# every run: what fails in CI fails on a desk. `pytest --hypothesis-profile explore` draws others.
settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None)
settings.load_profile("same")


# What tests import, and the hundreds of programs that they start, is compiled once, also where the
# environment says not to keep that.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Tests run side by side: each with threads of its own for matrices, they would wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# What a shell starts in the background ignores Ctrl-C, and so would the programs that are tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # by nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: no collection of garbage looks at it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Calibrations kept by the tests, and by the programs they start, go nowhere else."""
    before = os.environ.get("QDEBUG_CACHE_DIR")
    os.environ["QDEBUG_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["QDEBUG_CACHE_DIR"]
    else:
        os.environ["QDEBUG_CACHE_DIR"] = before
