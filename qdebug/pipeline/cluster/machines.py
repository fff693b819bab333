"""Where workers come from: processes of this machine, a scheduler that runs, or a job queue."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from qdebug.errors import ClusterError, UsageError, given_by
from qdebug.pipeline.cluster import worker
from qdebug.pipeline.cluster.dispatch import Cluster
from qdebug.wording import option
from qdebug.yamlfile import read_yaml

_CLASSES = {
    "slurm": ("dask_jobqueue", "SLURMCluster"),
    "pbs": ("dask_jobqueue", "PBSCluster"),
    "lsf": ("dask_jobqueue", "LSFCluster"),
    "ssh": ("distributed", "SSHCluster"),
}
_SUBMIT = {"slurm": "sbatch", "pbs": "qsub", "lsf": "bsub"}
"""Without it dask's classes wait for ever."""
_LOCAL = "local:"
_QUIET = {"distributed": {"logging": {"distributed": "critical"}}}


class ClusterFile(BaseModel):
    """A file for `cluster_config`: how a job queue, or SSH, starts workers.

    Attributes:
        workers: how many to ask for; of SSH, the hosts say it.
        options: what the class of dask takes, such as queue, cores, memory and walltime.
    """

    model_config = ConfigDict(extra="forbid")

    kind: Literal["slurm", "pbs", "lsf", "ssh"]
    workers: int = Field(1, ge=1)
    options: dict[str, Any] = {}


def open_cluster(
    stack: ExitStack,
    address: str | None,
    config: str | None,
    *,
    limit_s: float,
    gpus: bool = False,
) -> Cluster | None:
    """The workers that the settings ask for, which `stack` releases; None where they ask for none.

    Args:
        address: "local:N", or the address of a scheduler.
        config: the path of a file as ClusterFile; not with `address`.
        limit_s: how long a unit of work may take.
        gpus: processes of this machine get a GPU each.

    Raises:
        UsageError: both are given, or the file is not valid.
        ClusterError: dask is not installed, or there is no worker.
    """
    if address is None and config is None:
        return None
    if address is not None and config is not None:
        raise UsageError(
            f"{option('cluster')} and {option('cluster_config')} are given",
            "Give one of them.",
            code="QD-USAGE-CLUSTER",
        )
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qdebug-cluster-")))
    with _imported("distributed"):
        import dask

        # Before it is imported: from then on its loggers have handlers, which write to stderr.
        # A default, so that what the user has set for dask holds.
        dask.config.update_defaults(_QUIET)
        from distributed import Client
    where: Any = address
    if address is not None and address.startswith(_LOCAL):
        count = int(address.removeprefix(_LOCAL))
        where = _processes(count, folder, visible_gpus() if gpus else ())
        stack.callback(_closed, where)
    elif config is not None:
        where = _started(config)
        stack.callback(_closed, where)
    try:
        client = Client(where, timeout=_CONNECT_S, set_as_default=False)
        stack.callback(_closed, client)
        # A job may wait in its queue; workers of a scheduler that runs are there, or soon.
        client.wait_for_workers(1, timeout=limit_s if config else min(limit_s, _WORKERS_S))
        client.run(worker.begin, on_error="ignore")
    except (OSError, TimeoutError) as error:
        raise ClusterError(
            f"no worker of {address or config} answers: {error}",
            "Start a scheduler (`dask scheduler`) and workers (`dask worker ADDRESS`), or use "
            f"{option('cluster', 'local:4')}.",
            code="QD-CLUSTER-NO-WORKER",
        ) from error
    return Cluster(client, folder, limit_s)


_CONNECT_S, _WORKERS_S = 20.0, 60.0
_FAST = {
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
    "distributed.worker.profile.enabled": False,
}
"""Without these dask looks 100 times a second at what a worker does, and has it give memory back at
once, after which the system hands out fresh pages for every large array: measured, a quarter more
time of the processor."""
_HERE = {"dashboard": False, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
"""No page that shows what dask does; the port that it would have is taken by chance."""


@contextmanager
def _imported(package: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ClusterError(
            f"{option('cluster')} needs {package}, which is not installed ({error})",
            "Run: pip install 'qdebug[cluster]'",
            code="QD-CLUSTER-NOT-INSTALLED",
        ) from error


def _closed(what: Any) -> None:
    """Close what dask opened. A worker that does not end as it should is no error: all is done."""
    with suppress(Exception):
        what.close()


def _processes(count: int, folder: Path, gpus: Sequence[str]) -> Any:
    import dask
    from distributed import Scheduler, SpecCluster

    with dask.config.set(_FAST):
        return SpecCluster(
            workers=worker_specs(count, folder, gpus),
            scheduler={"cls": Scheduler, "options": {**_HERE, "port": 0}},
            silence_logs=logging.CRITICAL,
        )


def worker_specs(count: int, folder: Path, gpus: Sequence[str]) -> dict[int, dict[str, Any]]:
    """What dask is to start: so many processes of this machine, each with one thread, that are
    started anew when they die. Where there are GPUs, each process sees one of them."""
    from distributed import Nanny

    specs = {}
    for number in range(count):
        env = {"DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "critical"}
        if gpus:
            env["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
        options = {
            "nthreads": 1,
            "memory_limit": 0,
            "local_directory": str(folder / "workers"),
            "env": env,
            "silence_logs": logging.CRITICAL,
            **_HERE,
        }
        specs[number] = {"cls": Nanny, "options": options}
    return specs


def visible_gpus() -> tuple[str, ...]:
    """The GPUs of this machine that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return tuple(name.strip() for name in allowed.split(",") if name.strip())
    found = sorted(Path("/proc/driver/nvidia/gpus").glob("*"))
    return tuple(map(str, range(len(found))))


def _started(config: str) -> Any:
    """The job queue that a file describes, asked for its workers."""
    with given_by("cluster_config"):
        file = read_yaml(Path(config), ClusterFile, UsageError)
    module, name = _CLASSES[file.kind]
    submit = _SUBMIT.get(file.kind)
    if submit and shutil.which(submit) is None:
        raise ClusterError(
            f"{option('cluster_config')}: {config}: this machine has no '{submit}', which starts "
            f"jobs of {file.kind}",
            "Run the command where jobs can be submitted, such as a login node.",
            code="QD-CLUSTER-START",
        )
    with _imported(module.replace("_", "-")):
        make: Callable[..., Any] = getattr(import_module(module), name)
    try:
        cluster = make(**file.options)
        if file.kind != "ssh":
            cluster.scale(file.workers)
    except Exception as error:  # whatever the queue, or dask's class for it, objects to
        raise ClusterError(
            f"{option('cluster_config')}: {config}: {name}: {type(error).__name__}: {error}",
            f"'options' are what dask's {name} takes.",
            code="QD-CLUSTER-START",
        ) from error
    return cluster
