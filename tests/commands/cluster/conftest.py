from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import dask
import pytest

from qdebug.execute.cluster.dispatch import Cluster
from qdebug.execute.cluster.machines import open_cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two processes, for all tests of a process."""
    with ExitStack() as stack:
        found = open_cluster(stack, "local:2", None, limit_s=600.0)
        assert found is not None
        yield found


@pytest.fixture(scope="session")
def address(cluster: Cluster) -> str:
    """For commands, which take it as that of a scheduler."""
    return str(cluster.client.scheduler.address)


@pytest.fixture
def impatient() -> Iterator[None]:
    """dask ends the place of a worker at once when it is lost, where we do not say otherwise."""
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "1ms"}):
        yield
