"""Workers that a job queue or SSH starts, by dask's classes for them, and what becomes of jobs.

dask-jobqueue submits jobs and cancels them. Whether the queue refuses one, lets it wait or has
ended it, is found out here.
"""

from __future__ import annotations

import getpass
import logging
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from qdebug.errors import ClusterStartError, UsageError, given_by, required
from qdebug.outputfiles import own_folder
from qdebug.wording import counted, option
from qdebug.yamlfile import read_yaml

_LOG = logging.getLogger(__name__)
_SSH = "SSHCluster"
_FEW = 3
"""So many jobs that end before their worker connects are no accident."""
_ASK_EVERY_S, _ASK_S = 2.0, 20.0
_RENEW_EVERY_S = 10.0
_CONNECT_S = 20
_FEWEST_HOSTS = 2
_INSTALLED = "QD-CLUSTER-NOT-INSTALLED"


_USER = "USER"
_LISTED_S = 30.0
"""Queues list a job some seconds after they took it, at the latest then."""


@dataclass(frozen=True)
class _Queue:
    """A kind of job queue.

    Attributes:
        name: of dask's class.
        submit, ask: the program that submits a job, and the command that lists those of a user, a
            line each that begins with the number.
        state, reason: the fields of such a line with the state, and with what a job waits for.
        states: a word for a state; None where the job has ended.
        none: what the second program says when it fails because there are no jobs.
    """

    name: str
    submit: str
    ask: Sequence[str]
    state: int
    reason: int | None = None
    states: Mapping[str, str | None] = field(default_factory=dict)
    none: str | None = None

    def jobs(self) -> Mapping[str, str] | None:
        """The state of each job by its number, without those that ended; None where the queue does
        not say it now."""
        try:
            command = [getpass.getuser() if part == _USER else part for part in self.ask]
            asked = subprocess.run(
                command, capture_output=True, errors="replace", timeout=_ASK_S, check=False
            )
        except (OSError, KeyError, subprocess.SubprocessError):  # busy; it is asked again
            return None
        if asked.returncode and (self.none is None or self.none not in asked.stderr):
            return None
        return dict(filter(None, map(self._job, asked.stdout.splitlines())))

    def _job(self, line: str) -> tuple[str, str] | None:
        fields = line.split(None, self.reason or -1)
        number = re.match(r"\d+", line.lstrip())
        if number is None or len(fields) <= self.state:  # a header
            return None
        state = self.states.get(fields[self.state], fields[self.state].lower())
        if state is None:
            return None
        if self.reason is not None and state == "pending" and len(fields) > self.reason:
            state += f" ({fields[self.reason].strip('()')})"
        return number.group(), state


_QUEUES = {
    "slurm": _Queue(
        name="SLURMCluster",
        submit="sbatch",
        ask=("squeue", "--noheader", "--user", _USER, "--format=%A %T %r"),
        state=1,
        reason=2,
    ),
    "pbs": _Queue(  # of a user: job, user, queue, name, session, nodes, tasks, memory, time, state
        name="PBSCluster",
        submit="qsub",
        ask=("qstat", "-u", _USER),
        state=9,
        states={"Q": "queued", "R": "running", "H": "held", "W": "waiting", "B": "begun"}
        | {"S": "suspended", "U": "suspended", "T": "moving", "M": "moved", "E": "ending"}
        | dict.fromkeys("CFX"),
    ),
    "lsf": _Queue(
        name="LSFCluster",
        submit="bsub",
        ask=("bjobs", "-noheader", "-o", "jobid stat"),
        state=1,
        states={"PEND": "pending", "RUN": "running", "UNKWN": "unreachable"}
        | dict.fromkeys(("PSUSP", "USUSP", "SSUSP"), "suspended")
        | dict.fromkeys(("DONE", "EXIT", "ZOMBI")),
        none="No unfinished job found",
    ),
}


class ClusterFile(BaseModel):
    """A file for `cluster_config`: how a job queue, or SSH, starts workers.

    Attributes:
        workers: how many to ask for; of SSH, the hosts say it.
        options: what the class of dask takes, such as queue, cores, memory and walltime.
    """

    model_config = ConfigDict(extra="forbid")

    kind: Literal["slurm", "pbs", "lsf", "ssh"]
    workers: int = Field(1, ge=1)
    options: dict[str, Any] = Field({}, validate_default=True)

    @field_validator("options")
    @classmethod
    def _has_hosts(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        hosts = options.get("hosts")
        if info.data.get("kind") == "ssh" and not (
            isinstance(hosts, list) and len(hosts) >= _FEWEST_HOSTS
        ):
            raise ValueError("'hosts' must list the machine of the scheduler, then one per worker")
        return options


def required_dask(module: str, setting: str = "cluster_config") -> Any:
    """A module of a package that clusters need; `setting` asks for one.

    Raises:
        ClusterStartError: it is not installed.
    """
    return required(module, option(setting), code=_INSTALLED, error=ClusterStartError)


@dataclass
class JobQueue:
    """The jobs that were asked for.

    Attributes:
        cluster: dask's.
        queue: which they were given to.
        config: the path of the user's file.
        wanted: as `workers` of ClusterFile.
        logs: the folder that the jobs write to.
        refusals: what the queue said to jobs that it did not take.
    """

    cluster: Any
    queue: _Queue
    config: str
    wanted: int
    logs: Path
    refusals: list[str] = field(default_factory=list)
    _asked: float = 0.0
    _states: str = ""
    _renewed: float = field(default_factory=time.monotonic)
    _begun: float = field(default_factory=time.monotonic)
    _listed: set[str] = field(default_factory=set)

    def wait(self) -> str:
        """What the jobs wait for, while no worker is there.

        Raises:
            ClusterStartError: none will come.
        """
        jobs = self._numbers()
        if not jobs:
            if self.refusals:
                raise self._error(self.refusals[0])
            return "jobs are submitted"
        if time.monotonic() - self._asked >= _ASK_EVERY_S:
            self._states = self._look(jobs)
            self._asked = time.monotonic()
        return self._states

    def renew(self) -> None:
        """Submit jobs in the place of those that ended after their worker had connected."""
        if time.monotonic() - self._renewed >= _RENEW_EVERY_S:
            self._renewed = time.monotonic()
            self.cluster.scale(self.wanted)

    def waits(self) -> bool:
        """Whether the queue is known to have jobs of these, which wait or run."""
        return not (self.queue.jobs() or {}).keys().isdisjoint(self._numbers())

    def _numbers(self) -> list[str]:
        return [str(job.job_id) for job in list(self.cluster.workers.values()) if job.job_id]

    def _look(self, jobs: list[str]) -> str:
        states = self.queue.jobs()
        if states is None:
            return f"{counted(jobs, 'job')} submitted"
        self._listed |= states.keys()
        late = time.monotonic() - self._begun >= _LISTED_S
        ended = [
            job
            for job in jobs
            if job not in states and (late or job in self._listed or self._written(job))
        ]
        if len(ended) >= min(_FEW, len(jobs)):
            raise self._error(
                f"{counted(ended, 'job')} ended before a worker had connected; the log of "
                f"{ended[-1]} ends with: {self._log(ended[-1])}"
            )
        found = Counter(states[job] for job in jobs if job in states)
        return ", ".join(f"{counted(count, 'job')} {state}" for state, count in found.most_common())

    def _log(self, job: str) -> str:
        """The last line that a job wrote."""
        lines: list[str] = []
        for path in sorted(self._written(job), key=lambda path: path.stat().st_mtime):
            lines += path.read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "(nothing)")

    def _written(self, job: str) -> list[Path]:
        """The files that a job wrote."""
        files = self.logs.iterdir() if self.logs.is_dir() else ()
        return [file for file in files if job in re.findall(r"\d+", file.name)]

    def _error(self, what: str) -> ClusterStartError:
        return _refused(self.config, self.queue.name, what, _QUEUE_HINT)


_QUEUE_HINT = (
    "Correct 'options': queue, account, memory, the python of the job, and a working directory "
    "that it sees. The guide 'Many samples, several machines' has an example."
)
_SSH_HINT = (
    "See whether `ssh HOST PYTHON -c 'import distributed, qdebug'` works for each of 'hosts', by a "
    "key and without a question; PYTHON is 'remote_python', or else the path of this one."
)


def _refused(config: str, name: str, what: str, hint: str) -> ClusterStartError:
    return ClusterStartError(
        f"{option('cluster_config')}: {config}: {name}: {what}", hint, code="QD-CLUSTER-START"
    )


def said(error: BaseException) -> str:
    """The first sentence of an error that is not qdebug's own: dask adds what it was given."""
    lines = str(error).replace("\\n", "\n").strip().splitlines() or [type(error).__name__]
    return lines[0].partition(". ")[0].strip().rstrip(".:").removesuffix(", for example")


def closed(what: Any) -> None:
    """Close what dask opened. What does not end as it should is no error: all is done, workers end
    without a scheduler, and dask raises here whatever comes to it, its own assertions too."""
    try:
        what.close()
    except Exception as error:
        _LOG.debug("%s did not close: %r", type(what).__name__, error)


def keep_places(stack: ExitStack) -> None:
    """Until `stack` ends, a worker's place is its own, however often it is started anew.

    So long after a worker was lost, dask ends its place for good if it is empty then: after its own
    15 s also that of one which came back at once and is started for the second time just then. Of
    job queues it must, or no other job would be submitted.
    """
    import dask

    stack.enter_context(dask.config.set({"distributed.deploy.lost-worker-timeout": "1000 days"}))


def started(stack: ExitStack, config: str, folder: Path) -> tuple[Any, JobQueue | None]:
    """The workers that a file describes, asked for: dask's cluster, which `stack` closes, and the
    jobs of it, where there are any.

    Args:
        folder: for the temporary files of the scheduler.

    Raises:
        UsageError: the file is not valid.
        ClusterStartError: a package or a program is missing, or the options are refused.
    """
    with given_by("cluster_config"):
        file = read_yaml(Path(config), ClusterFile, UsageError)
    if file.kind == "ssh":
        return _by_ssh(stack, config, file), None
    import dask

    with dask.config.set({"temporary-directory": str(folder)}):
        queue = _submitted(stack, config, file)
    return queue.cluster, queue


def _submitted(stack: ExitStack, config: str, file: ClusterFile) -> JobQueue:
    queue = _QUEUES[file.kind]
    name = queue.name
    if shutil.which(queue.submit) is None:  # dask would wait for ever
        what = f"this machine has no '{queue.submit}', which starts jobs of {file.kind}"
        hint = "Run the command where jobs can be submitted, such as a login node."
        raise _refused(config, name, what, hint)
    with _handlers_kept():
        module = required_dask("dask_jobqueue")
    make = getattr(module, name)
    options = dict(file.options)
    refusals: list[str] = []
    try:
        options["scheduler_options"] = {**_NO_PAGE, **(options.get("scheduler_options") or {})}
        logs = options.setdefault("log_directory", _log_folder(stack, file.kind))
        if _known_to_dask(file.kind, "python") is None:  # a path may hold a space
            options.setdefault("python", _python())
        options["job_cls"] = _reporting(make.job_cls, refusals)
        cluster = make(**options)
    except Exception as error:  # whatever dask's class objects to
        raise _refused(config, name, said(error), _QUEUE_HINT) from error
    stack.callback(closed, cluster)
    cluster.scale(file.workers)
    return JobQueue(cluster, queue, config, file.workers, Path(logs), refusals)


_REMOTE = "qdebug.execute.cluster.remote"
_ENDS_ALONE = {"death_timeout": 60.0}
"""As of the jobs of dask-jobqueue: seconds without a scheduler."""
_NO_PAGE = {"dashboard": False, "dashboard_address": ":0"}


def _python() -> str:
    """This Python in a line of a shell. With -P the files of the folder that a worker starts in are
    no modules: dask starts workers with -m, which would execute them."""
    return f"{shlex.quote(sys.executable)} -P"


def _known_to_dask(kind: str, name: str) -> Any:
    """What the user has set for dask's class for a job queue."""
    import dask

    return dask.config.get(f"jobqueue.{kind}.{name}", None)


def _log_folder(stack: ExitStack, kind: str) -> str:
    """Where jobs write what goes wrong: where the user has set it for dask, or beside the user's
    files, which other machines see, until the command ends."""
    known = _known_to_dask(kind, "log-directory")
    return str(known or stack.enter_context(own_folder(".qdebug-jobs-", Path.cwd())))


def _reporting(job_class: Any, refusals: list[str]) -> Any:
    """dask's class for a job, which keeps what the queue says when it refuses one: dask prints the
    traceback, and waits."""
    from distributed.core import Status

    class Reporting(job_class):  # type: ignore[misc]
        async def start(self) -> None:
            try:
                await super().start()
            except (RuntimeError, OSError, ValueError) as error:
                reason = str(error).partition("stderr:")[2].strip() or str(error)
                refusals.append("; ".join(reason.splitlines()))
                self.status = Status.running  # as of one whose worker never comes

    Reporting.__name__ = Reporting.__qualname__ = job_class.__name__  # in messages
    return Reporting


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """dask-jobqueue replaces the handler of Ctrl-C when it is imported."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _by_ssh(stack: ExitStack, config: str, file: ClusterFile) -> Any:
    required_dask("asyncssh")
    import dask
    from distributed import SSHCluster

    options = dict(file.options)
    given = options.pop("connect_options", None) or {}
    patient = {"connect_timeout": _CONNECT_S, "login_timeout": _CONNECT_S}
    hosts = options["hosts"]
    try:
        listed = given if isinstance(given, list) else [given] * len(hosts)
        options["connect_options"] = [{**patient, **each} for each in listed]
        scheduler = dict(options.get("scheduler_options") or {})
        scheduler["preload"] = [*scheduler.get("preload", ()), _REMOTE]
        options["scheduler_options"] = {**_NO_PAGE, **scheduler}
        options.setdefault("remote_python", _python())
        options["worker_options"] = {**_ENDS_ALONE, **(options.get("worker_options") or {})}
        keep_places(stack)
        # By these lines dask learns that a process has started, and where it listens.
        with dask.config.set({"distributed.logging.distributed": "info"}):
            cluster = SSHCluster(**options)
    except Exception as error:  # whatever asyncssh, the host, or dask's class objects to
        cause = error.__cause__ or error
        raise _refused(config, _SSH, said(cause), _SSH_HINT) from error
    stack.callback(closed, cluster)
    return cluster
