"""Fixtures for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("no deadline", deadline=None)  # a busy machine is no failure
settings.load_profile("no deadline")


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
