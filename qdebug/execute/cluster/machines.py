"""Where workers come from: processes of this machine, a scheduler that runs, or a job queue."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdebug.backends.options import DEFAULT_SESSIONS, SessionSettings
from qdebug.backends.stream import available_cores
from qdebug.errors import UsageError
from qdebug.execute.cluster import worker
from qdebug.execute.cluster.dispatch import Cluster, fail_without_worker
from qdebug.execute.cluster.queues import (
    JobQueue,
    closed,
    keep_places,
    required_dask,
    said,
    started,
)
from qdebug.outputfiles import (
    own_folder,
    refuse_temporary,
    temporary_folder,
    uninterrupted,
)
from qdebug.types import Progress, ProgressCallback, ignore_progress
from qdebug.wording import counted, option

if TYPE_CHECKING:
    from distributed import Client

_LOG = logging.getLogger(__name__)
_LOCAL = "local:"
_QUIET = {"distributed": {"logging": {"distributed": "critical", "distributed.client": "critical"}}}


def open_cluster(
    stack: ExitStack,
    address: str | None,
    config: str | None,
    *,
    limit_s: float | None,
    sessions: SessionSettings = DEFAULT_SESSIONS,
    gpus: bool = False,
    progress: ProgressCallback = ignore_progress,
) -> Cluster | None:
    """The workers that the settings ask for, which `stack` releases; None where they ask for none.
    Returns when the first of them is there: jobs that wait in a queue are waited for.

    Args:
        address: "local:N", or the address of a scheduler.
        config: the path of a file as ClusterFile; not with `address`.
        limit_s: how long a unit of work may take; None for ten minutes.
        sessions: what holds for the sessions of the workers.
        gpus: processes of this machine get a GPU each.

    Raises:
        UsageError: both are given, or only `limit_s`, or the file is not valid.
        ClusterStartError: dask is not installed, or there is no worker.
    """
    if not _wanted(address, config, limit_s):
        return None
    folder = _folder(stack)
    _import_dask("cluster" if config is None else "cluster_config")
    from distributed import Client

    where, queue = _workers(stack, address, config, folder, gpus=gpus)
    try:
        client = Client(where, timeout=_CONNECT_S, set_as_default=False)
    except Exception as error:  # whatever dask raises where it does not connect
        fail_without_worker(f"no scheduler answers at {address or config}: {said(error)}")
    try:
        stack.callback(closed, client)
        _wait(client, queue, progress)
        _begin(client)
    except (OSError, TimeoutError) as error:
        fail_without_worker(f"no worker of {address or config} answers: {said(error)}")
    return Cluster(client, folder, limit_s or _UNIT_S, sessions, queue, here=_is_here(address))


def _wanted(address: str | None, config: str | None, limit_s: float | None) -> bool:
    """Whether the settings ask for workers. Raises as `open_cluster` does where they contradict."""
    if address is None and config is None:
        if limit_s is not None:
            raise UsageError(
                f"{option('unit_timeout')} limits work on a cluster, and there is none",
                f"Give {option('cluster')} or {option('cluster_config')} too, or leave it out.",
                code="QD-USAGE-CLUSTER",
            )
        return False
    if address is not None and config is not None:
        raise UsageError(
            f"{option('cluster')} and {option('cluster_config')} cannot be combined",
            "Give one of them.",
            code="QD-USAGE-CLUSTER",
        )
    return True


def _workers(
    stack: ExitStack, address: str | None, config: str | None, folder: Path, *, gpus: bool
) -> tuple[Any, JobQueue | None]:
    """What dask's client connects to, and the jobs that were asked for. See `open_cluster`."""
    if config is not None:
        return started(stack, config, folder)
    assert address is not None
    if not _is_here(address):
        _check_scheduler(address)
        return address, None
    count = int(address.removeprefix(_LOCAL))
    if count > (cores := available_cores()):
        there = counted(cores, "core")
        _LOG.warning("%s on %s: more processes than cores gain nothing", address, there)
    return _processes(stack, count, folder, visible_gpus() if gpus else ()), None


def _is_here(address: str | None) -> bool:
    return address is not None and address.startswith(_LOCAL)


def _check_scheduler(address: str) -> None:
    """See who answers before dask's client asks: it waits for an answer without a limit, and prints
    a traceback when it is thrown away half-made.

    Raises:
        ClusterStartError: no scheduler of dask does.
    """
    import dask
    from distributed.comm.core import CommClosedError, connect
    from distributed.security import Security
    from distributed.utils import LoopRunner, import_term

    limit, security = _CONNECT_S, Security()
    if loader := dask.config.get("distributed.client.security-loader", None):
        try:  # as dask's client does
            security = import_term(loader)({"address": address}) or security
        except Exception as error:
            fail_without_worker(f"dask's security-loader {loader} failed: {said(error)}")
    arguments = security.get_connection_args("client")
    if address.startswith("tls:") and arguments.get("ssl_context") is None:
        fail_without_worker(
            f"{address} needs certificates, and dask's configuration names none "
            "(distributed.comm.tls)"
        )

    async def kind() -> str:
        comm = await connect(address, timeout=limit, **arguments)
        try:
            await comm.write({"op": "identity", "reply": True})
            return str((await comm.read())["type"])
        finally:
            comm.abort()

    async def limited() -> str:
        return await asyncio.wait_for(kind(), limit + _ANSWER_S)

    other = f"what answers at {address} is not a dask scheduler"
    try:
        found = LoopRunner(asynchronous=False).run_sync(limited)
    except (CommClosedError, TimeoutError):
        fail_without_worker(other)
    except OSError:
        fail_without_worker(f"no scheduler answers at {address} within {limit:g} s")
    except Exception:  # it read the bytes of another protocol
        fail_without_worker(other)
    if found != "Scheduler":
        fail_without_worker(f"{other}, but a {found.lower()}")


_UNIT_S = 600.0
_CONNECT_S, _WORKERS_S = 20.0, 60.0
_ANSWER_S = 1.0
"""Later than the end of connecting, which is told apart by it."""
_LOOK_EVERY_S, _SAID_AFTER_S = 0.2, 10.0


def _wait(client: Client, queue: JobQueue | None, progress: ProgressCallback) -> None:
    """Wait for the first worker: of a queue as long as jobs wait in it, else a minute."""
    began, told = time.monotonic(), False
    while not client.scheduler_info(n_workers=-1)["workers"]:
        waited = time.monotonic() - began
        if queue is None:
            if waited > _WORKERS_S:
                raise TimeoutError(f"none came within {_WORKERS_S:g} s")
        else:
            note = queue.wait()
            progress(Progress("workers", 0, queue.wanted, note))
            if waited > _SAID_AFTER_S and not told:
                told = True
                _LOG.warning("no worker yet: %s", note)
        time.sleep(_LOOK_EVERY_S)


def _begin(client: Client) -> None:
    """Have the workers import what they will need, without waiting for them: one may not answer."""

    def begin() -> None:
        with suppress(Exception):  # they import it with their first unit then
            client.run(worker.begin, on_error="ignore")

    threading.Thread(target=begin, name="qdebug-begin", daemon=True).start()


def _folder(stack: ExitStack) -> Path:
    """A folder of this command, for what workers are sent."""
    where = temporary_folder()
    try:
        return stack.enter_context(own_folder("qdebug-cluster-", where))
    except OSError as error:
        what = "no folder can be made for the files of workers"
        refuse_temporary(where, what, error, error.strerror or str(error))


def _import_dask(setting: str) -> None:
    dask = required_dask("dask", setting)
    # Before it is imported: from then on its loggers have handlers, which write to stderr.
    # A default, so that what the user has set for dask holds.
    dask.config.update_defaults(_QUIET)
    required_dask("distributed", setting)
    logging.getLogger("tornado.application").addFilter(_no_defect_of_dask)


def _no_defect_of_dask(record: logging.LogRecord) -> bool:
    """Where Ctrl-C meets the first moment of a call, dask's cancelling it raises a NameError, which
    is printed: nothing is to be cancelled yet."""
    return "sync.<locals>.cancel" not in record.getMessage()


def _before_start(variables: Mapping[str, str | None]) -> dict[str, str | None]:
    """dask's settings for variables that its processes have from the start."""
    return {f"distributed.nanny.pre-spawn-environ.{n}": value for n, value in variables.items()}


_FAST = {
    **_before_start({"MALLOC_TRIM_THRESHOLD_": None}),
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "10s",
}
"""Without these dask looks 100 times a second at what a worker does, and has it give memory back at
once, after which the system hands out fresh pages for every large array: measured, a quarter more
time of the processor. Each process, too, sees 50 times a second whether it still reacts: 1.5 % of a
core per worker, and as much in the command for each."""
_HERE = {"dashboard": False, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
"""No page that shows what dask does; the port that it would have is taken by chance."""


def _processes(stack: ExitStack, count: int, folder: Path, gpus: Sequence[str]) -> Any:
    import dask
    from distributed import Scheduler, SpecCluster

    scheduler = {"cls": Scheduler, "options": {**_HERE, "port": 0}}
    keep_places(stack)
    # After it was closed: of semaphores that Python has not collected it warns at the end.
    stack.callback(gc.collect)
    with (
        worker.safe_path() as safe,
        dask.config.set({**_FAST, **_before_start(safe), "temporary-directory": str(folder)}),
        _deaf_children(),
        uninterrupted(),
    ):
        cluster = SpecCluster(
            workers=worker_specs(count, folder, gpus),
            scheduler=scheduler,
            silence_logs=logging.CRITICAL,
        )
        stack.callback(closed, cluster)
    return cluster


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Signals that end a command do not reach the processes whose threads begin within, which are
    in the terminal's group too: this one ends them."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        sys.warnoptions.append(_UNSAID)
        resource_tracker.ensure_running()  # a process too; it lets two of them through
        sys.warnoptions.remove(_UNSAID)
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_UNSAID = "ignore:resource_tracker:UserWarning"
"""The process that puts away what a killed command left says so on its terminal."""


def worker_specs(count: int, folder: Path, gpus: Sequence[str]) -> dict[int, dict[str, Any]]:
    """What dask is to start: so many processes of this machine, each with one thread, that are
    started anew when they die. Where there are GPUs, each process sees one of them."""
    from distributed import Nanny

    specs = {}
    place = folder / "workers"  # theirs, too, goes with the command's
    place.mkdir(exist_ok=True)
    for number in range(count):
        env = {"DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "critical", "TMPDIR": str(place)}
        if gpus:
            env["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
        options = {
            "nthreads": 1,
            "memory_limit": 0,
            "local_directory": str(place),
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
