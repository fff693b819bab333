from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from qdebug.config.shared import ClusterSettings
from qdebug.execute.cluster.dispatch import DaskExecutor
from qdebug.execute.cluster.machines import open_executor


@pytest.fixture(scope="session")
def executor() -> Iterator[DaskExecutor]:
    """Two processes, for all tests of a process."""
    with ExitStack() as stack:
        found = open_executor(stack, ClusterSettings(cluster="local:2"))
        assert isinstance(found, DaskExecutor)
        yield found


@pytest.fixture
def address(executor: DaskExecutor) -> str:
    """For commands, which take it as that of a scheduler; both workers are there."""
    executor.client.wait_for_workers(2)
    return str(executor.client.scheduler.address)
