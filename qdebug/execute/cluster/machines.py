"""Where workers come from: processes of this machine, or a scheduler that runs."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdebug.backends.stream import available_cores
from qdebug.config.shared import ClusterSettings, local_processes
from qdebug.errors import ClusterStartError, required
from qdebug.execute.cluster import worker
from qdebug.execute.cluster.dispatch import DaskExecutor, fail_without_worker
from qdebug.outputfiles import kept_in
from qdebug.run.executor import THIS_PROCESS, Executor
from qdebug.wording import counted, option

if TYPE_CHECKING:
    from distributed import Client

_LOG = logging.getLogger(__name__)
_QUIET = {"distributed": {"logging": {"distributed": "critical", "distributed.client": "critical"}}}


def open_executor(stack: ExitStack, settings: ClusterSettings, *, gpus: bool = False) -> Executor:
    """Who executes what a command divides: this process, or the workers that the settings ask for,
    which `stack` releases. Returns when the first of them is there.

    Args:
        gpus: processes of this machine get a GPU each.

    Raises:
        ClusterStartError: dask is not installed, or there is no worker.
    """
    address = settings.cluster
    if address is None:
        return THIS_PROCESS
    folder = _folder(stack)
    _import_dask()
    from distributed import Client

    _check_certificates(address)
    count = local_processes(address)
    try:
        where = (
            _processes(stack, count, folder, visible_gpus() if gpus else ()) if count else address
        )
        client = Client(where, timeout=_CONNECT_S, set_as_default=False)
    except Exception as error:  # whatever dask raises where it does not start or connect
        what = "the processes do not start" if count else f"no scheduler answers at {address}"
        fail_without_worker(f"{what}: {_said(error)}")
    stack.callback(_closed, client)
    try:
        client.wait_for_workers(1, timeout=_WORKERS_S)
    except Exception as error:  # as above
        fail_without_worker(f"{address} has no worker: {_said(error)}")
    _begin(client)
    return DaskExecutor(client, folder)


def _check_certificates(address: str) -> None:
    """Refuse tls without certificates: dask's client, thrown away half-made, waits for itself.

    Raises:
        ClusterStartError: dask's configuration names none, and no loader of any.
    """
    import dask
    from distributed.security import Security

    if not address.startswith("tls:") or dask.config.get(
        "distributed.client.security-loader", None
    ):
        return
    if Security().get_connection_args("client").get("ssl_context") is None:
        fail_without_worker(
            f"{address} needs certificates, and dask's configuration names none "
            "(distributed.comm.tls)"
        )


def _said(error: BaseException) -> str:
    """The first sentence of an error that is not qdebug's own: dask adds what it was given."""
    lines = str(error).replace("\\n", "\n").strip().splitlines() or [type(error).__name__]
    return lines[0].partition(". ")[0].strip().rstrip(".:").removesuffix(", for example")


def _closed(what: Any) -> None:
    """Close what dask opened. What does not end as it should is no error: all is done, workers end
    without a scheduler, and dask raises here whatever comes to it, its own assertions too."""
    try:
        what.close()
    except Exception as error:
        _LOG.debug("%s did not close: %r", type(what).__name__, error)


_CONNECT_S, _WORKERS_S = 20.0, 60.0


def _begin(client: Client) -> None:
    """Have the workers import what they will need, without waiting for them: one may not answer."""

    def begin() -> None:
        with suppress(Exception):  # they import it with their first unit then
            client.run(worker.begin, on_error="ignore")

    threading.Thread(target=begin, name="qdebug-begin", daemon=True).start()


def _folder(stack: ExitStack) -> Path:
    """A folder of this command, for what workers are sent."""
    with kept_in(Path(tempfile.gettempdir()), "the files of workers"):
        made = tempfile.TemporaryDirectory(prefix="qdebug-cluster-", ignore_cleanup_errors=True)
        return Path(stack.enter_context(made))


def _import_dask() -> None:
    """Raises ClusterStartError where it is not installed."""
    missing: dict[str, Any] = {"code": "QD-CLUSTER-NOT-INSTALLED", "error": ClusterStartError}
    dask = required("dask", option("cluster"), **missing)
    # Before it is imported: from then on its loggers have handlers, which write to stderr.
    # A default, so that what the user has set for dask holds.
    dask.config.update_defaults(_QUIET)
    required("distributed", option("cluster"), **missing)
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
_ENDS = {"distributed.scheduler.no-workers-timeout": "60s"}
"""Otherwise what has no worker waits without an end."""
_HERE = {"dashboard": False, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
"""No page that shows what dask does; the port that it would have is taken by chance."""


def _processes(stack: ExitStack, count: int, folder: Path, gpus: Sequence[str]) -> Any:
    import dask
    from distributed import Scheduler, SpecCluster

    if count > (cores := available_cores()):
        there = counted(cores, "core")
        _LOG.warning("local:%d on %s: more processes than cores gain nothing", count, there)
    scheduler = {"cls": Scheduler, "options": {**_HERE, "port": 0}}
    # A worker's place is its own, however often it is started anew: dask would end it for good
    # where it is empty 15 s after the worker was first lost, also while the next one is coming.
    stack.enter_context(dask.config.set({"distributed.deploy.lost-worker-timeout": "1000 days"}))
    # After it was closed: of semaphores that Python has not collected it warns at the end.
    stack.callback(gc.collect)
    with (
        worker.safe_path() as safe,
        dask.config.set(
            {**_FAST, **_ENDS, **_before_start(safe), "temporary-directory": str(folder)}
        ),
        _deaf_children(),
    ):
        cluster = SpecCluster(
            workers=worker_specs(count, folder, gpus),
            scheduler=scheduler,
            silence_logs=logging.CRITICAL,
        )
        stack.callback(_closed, cluster)
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
