"""Workers by a job queue and by SSH: what is asked of it, and what it refuses, delays and ends.

The queue is three small programs that behave like those of Slurm, PBS or LSF; a job is a process of
this machine.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from qdebug.errors import QdebugError
from qdebug.execute.cluster import queues
from qdebug.execute.cluster.machines import open_cluster
from qdebug.types import Progress

pytest.importorskip("dask_jobqueue")

TAKEN = """\
if test -e {here}/ends; then
    sh {here}/script-$number > /dev/null 2> "$log"
else
    echo $number >> {here}/queue
fi
"""
STARTED = """\
if test -e {here}/waits; then
    rm {here}/waits
    for number in $(cat {here}/queue); do sh {here}/script-$number > /dev/null 2>&1 & done
fi
"""
SBATCH = """\
if test -e {here}/refuses; then
    echo 'sbatch: error: invalid partition specified: gpu' >&2; exit 1
fi
number=$$
cp "$1" {here}/script-$number
log=$(sed -n 's/^#SBATCH -e \\(.*\\)%J.err/\\1/p' "$1")$number.err
{taken}echo "Submitted batch job $number"
"""
SQUEUE = """\
test "$*" = "--noheader --user $(id -un) --format=%A %T %r" || exit 1
touch {here}/queue {here}/asked
for number in $(cat {here}/queue); do echo "$number PENDING Resources"; done
{started}"""
SCANCEL = """\
echo $1 >> {here}/cancelled
"""
QSUB = """\
number=$$
cp "$1" {here}/script-$number
log=$(sed -n 's/^#PBS -e //p' "$1")$number.server.ER
{taken}echo "$number.server"
"""
QSTAT = """\
test "$*" = "-u $(id -un)" || exit 1
touch {here}/queue
echo
echo 'server:'
echo '                                                            Req\'d  Req\'d   Elap'
echo 'Job ID          Username Queue    Jobname    SessID NDS TSK Memory Time  S Time'
echo '--------------- -------- -------- ---------- ------ --- --- ------ ----- - -----'
echo '17.server       user     workq    done         1234   1   2  2000m 01:00 C 00:10'
for number in $(cat {here}/queue); do
    echo "$number.server   user     workq    dask-work*    --    1   2  2000m 00:30 Q   --"
done
{started}"""
BSUB = """\
number=$$
cat > {here}/script-$number
log=$(sed -n 's/^#BSUB -e \\(.*\\)%J.err/\\1/p' {here}/script-$number)$number.err
{taken}echo "Job <$number> is submitted to queue <gpu>."
"""
BJOBS = """\
test "$*" = "-noheader -o jobid stat" || exit 1
if ! test -s {here}/queue; then echo 'No unfinished job found' >&2; exit 255; fi
for number in $(cat {here}/queue); do echo "$number PEND"; done
{started}"""
PROGRAMS = {
    "slurm": {"sbatch": SBATCH, "squeue": SQUEUE, "scancel": SCANCEL},
    "pbs": {"qsub": QSUB, "qstat": QSTAT, "qdel": SCANCEL},
    "lsf": {"bsub": BSUB, "bjobs": BJOBS, "bkill": SCANCEL},
}
OPTIONS = "{queue: gpu, cores: 2, processes: 1, memory: 2GB, scheduler_options: {host: 127.0.0.1}"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a queue; a file 'refuses', 'waits' or 'ends' there says what it does."""
    return installed("slurm", tmp_path, monkeypatch)


def installed(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = folder / "queue"
    (here / "bin").mkdir(parents=True)
    for name, text in PROGRAMS[kind].items():
        parts = {"taken": TAKEN.format(here=here), "started": STARTED.format(here=here)}
        program = f"#!/bin/sh\n{text.format(here=here, **parts)}"
        (here / "bin" / name).write_text(program, encoding="utf-8")
        (here / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{here / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(folder)
    return here


def config(options: str, workers: int = 2, kind: str = "slurm") -> str:
    path = Path("cluster.yaml")
    path.write_text(f"kind: {kind}\nworkers: {workers}\noptions: {options}}}\n", encoding="utf-8")
    return str(path)


def refused(path: str) -> QdebugError:
    with pytest.raises(QdebugError) as found, ExitStack() as stack:
        open_cluster(stack, None, path, limit_s=60.0)
    assert found.value.exit_code == 2
    return found.value


def test_jobs_that_wait_are_said_and_waited_for(slurm: Path) -> None:
    (slurm / "waits").touch()
    handler = signal.getsignal(signal.SIGINT)
    steps: list[Progress] = []
    extra = f'{OPTIONS}, job_script_prologue: ["cd {Path.cwd()}"]'
    with ExitStack() as stack:
        cluster = open_cluster(stack, None, config(extra), limit_s=60.0, progress=steps.append)
        assert cluster is not None
        assert cluster.client.submit(os.getpid).result() != os.getpid()
        numbers = sorted(path.name.removeprefix("script-") for path in slurm.glob("script-*"))
        assert len(numbers) == 2
        asked = (slurm / f"script-{numbers[0]}").read_text(encoding="utf-8")
        assert list(Path().glob(".qdebug-jobs-*"))
    for line in ("-p gpu", "--cpus-per-task=2", "--mem=2G", f"cd {Path.cwd()}", sys.executable):
        assert line in asked
    assert any(step.note == "2 jobs pending (Resources)" for step in steps)
    assert sorted((slurm / "cancelled").read_text("utf-8").split()) == numbers
    assert not list(Path().glob(".qdebug-jobs-*"))
    assert signal.getsignal(signal.SIGINT) is handler  # which dask-jobqueue replaces


def test_a_python_whose_path_holds_a_space(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "a folder" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    (slurm / "waits").touch()
    with ExitStack() as stack:
        cluster = open_cluster(stack, None, config(OPTIONS, workers=1), limit_s=60.0)
        assert cluster is not None
        assert cluster.client.submit(os.getpid).result() != os.getpid()


def test_a_job_that_ends_is_submitted_anew(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, impatient: None
) -> None:
    monkeypatch.setattr(queues, "_RENEW_EVERY_S", 0.2)
    (slurm / "waits").touch()
    with ExitStack() as stack:
        cluster = open_cluster(stack, None, config(OPTIONS, workers=1), limit_s=60.0)
        assert cluster is not None
        # What would start the worker anew; the worker goes with it.
        os.kill(cluster.client.submit(os.getppid).result(), signal.SIGKILL)
        deadline = time.monotonic() + 20
        while len(list(slurm.glob("script-*"))) < 2:
            assert time.monotonic() < deadline
            cluster.look()
            time.sleep(0.1)


@pytest.mark.parametrize(("kind", "note"), [("pbs", "2 jobs queued"), ("lsf", "2 jobs pending")])
def test_the_jobs_of_other_queues(
    kind: str, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait and run; when the next ones end at once, that is told."""
    here = installed(kind, tmp_path, monkeypatch)
    monkeypatch.setattr(queues, "_ASK_EVERY_S", 0.2)
    (here / "waits").touch()
    steps: list[Progress] = []
    with ExitStack() as stack:
        path = config(OPTIONS, kind=kind)
        cluster = open_cluster(stack, None, path, limit_s=60.0, progress=steps.append)
        assert cluster is not None
        assert cluster.client.submit(os.getpid).result() != os.getpid()
    assert any(step.note == note for step in steps)
    numbers = sorted(path.name.removeprefix("script-") for path in here.glob("script-*"))
    assert sorted((here / "cancelled").read_text("utf-8").split()) == numbers
    (here / "queue").unlink()
    (here / "ends").touch()
    error = refused(config(f"{OPTIONS}, python: /no/python", workers=5, kind=kind))
    assert error.code == "QD-CLUSTER-START"
    assert "/no/python" in error.message


def test_states_of_jobs_that_are_not_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And names that are no UTF-8; a program that fails says nothing."""
    here = installed("lsf", tmp_path, monkeypatch)
    program = here / "bin" / "bjobs"
    program.write_bytes(b"#!/bin/sh\nprintf '11 USUSP\\n12 EXIT\\n13 UNKWN\\n\\351 x\\n'\n")
    jobs = queues._QUEUES["lsf"].jobs()
    assert jobs == {"11": "suspended", "13": "unreachable"}
    program.write_text("#!/bin/sh\necho '11 PEND'\necho 'cannot connect' >&2\nexit 255\n")
    assert queues._QUEUES["lsf"].jobs() is None


def test_a_job_that_the_queue_does_not_list_yet_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("lsf", tmp_path, monkeypatch)  # which lists none
    monkeypatch.setattr(queues, "_ASK_EVERY_S", 0.0)
    job = SimpleNamespace(job_id="77")
    cluster = SimpleNamespace(workers={"one": job})
    queue = queues.JobQueue(cluster, queues._QUEUES["lsf"], "cluster.yaml", 1, tmp_path / "logs")
    assert queue.wait() == ""
    monkeypatch.setattr(queues, "_LISTED_S", 0.0)
    with pytest.raises(QdebugError) as found:
        queue.wait()
    assert found.value.code == "QD-CLUSTER-START"


def test_a_queue_that_refuses_all_jobs_is_quoted(slurm: Path) -> None:
    """By the program, since dask tells the terminal of it, too."""
    (slurm / "refuses").touch()
    data = Path(__file__).parents[3] / "calib_data"
    command = [sys.executable, "-m", "qdebug", "compare", data / "digits_cnn.onnx"]
    command += ["--inputs", data / "digits_calib.npz", "--cluster-config", config(OPTIONS)]
    done = subprocess.run([*command, "--no-progress"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("qdebug: error: ") and done.stderr.count("\n") == 2
    assert "QD-CLUSTER-START" in done.stderr
    assert "invalid partition specified: gpu" in done.stderr


def test_jobs_that_end_at_once_are_told_with_their_log(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "_ASK_EVERY_S", 0.2)
    (slurm / "ends").touch()
    error = refused(config(f"{OPTIONS}, python: /no/python", workers=5))
    assert error.code == "QD-CLUSTER-START"
    assert "/no/python" in error.message


def test_options_that_dask_does_not_take_are_refused(slurm: Path) -> None:
    assert refused(config("{queue: gpu")).code == "QD-CLUSTER-START"  # cores and memory are missing
    message = refused(config(f"{OPTIONS}, coers: 3")).message
    assert "coers" in message
    assert not [part for part in ("Reporting", "job_kwargs", "\\n", "\n") if part in message]
    assert not (slurm / "asked").exists()


@pytest.mark.parametrize("rest", ["", "options: {}\n", "options: {hosts: [127.0.0.1]}\n"])
def test_ssh_without_a_list_of_hosts_is_an_error_of_the_file(tmp_path: Path, rest: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(f"kind: ssh\n{rest}", encoding="utf-8")
    error = refused(str(path))
    assert error.code == "QD-USAGE-CONFIG-FILE" and "'hosts'" in error.message


def test_what_ssh_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as held:  # bound and not listening: it refuses connections
        held.bind(("127.0.0.1", 0))
        path = tmp_path / "cluster.yaml"
        hosts = "hosts: [127.0.0.1, 127.0.0.1]"
        port = f"connect_options: {{port: {held.getsockname()[1]}}}"
        path.write_text(f"kind: ssh\noptions: {{{hosts}, {port}}}\n", encoding="utf-8")
        pytest.importorskip("asyncssh")
        error = refused(str(path))
        assert error.code == "QD-CLUSTER-START" and "127.0.0.1" in error.message
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    error = refused(str(path))
    assert error.code == "QD-CLUSTER-NOT-INSTALLED" and "pip install asyncssh" in error.hint
