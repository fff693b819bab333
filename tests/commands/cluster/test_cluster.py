"""The cluster itself: units that end their worker, hang, need a file or raise."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import dask
import pytest
from dask_workers import joining
from distributed import Client, Scheduler, Security, SpecCluster

from qdebug.analyse.effect.runs import cut
from qdebug.config.cluster import parse_cluster
from qdebug.config.compare import CompareSettings
from qdebug.config.resolve import validated
from qdebug.errors import ClusterError, QdebugError, SampleError
from qdebug.execute.cluster import dispatch, files, machines, unit
from qdebug.execute.cluster.dispatch import Cluster
from qdebug.execute.cluster.files import SharedFile, shared_file
from qdebug.execute.cluster.machines import open_cluster
from qdebug.execute.cluster.unit import Place, Shard, shards
from qdebug.types import Progress

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it


@dataclass(frozen=True)
class Once:
    """Squares numbers; what `trouble` says happens to the first process that is given a 3."""

    marker: str
    trouble: str = ""

    def open(self, place: Place, stack: ExitStack) -> Callable[[int], int]:
        def run(number: int) -> int:
            time.sleep(0.01)
            if number == 3 and self.trouble and not Path(self.marker).exists():
                Path(self.marker).touch()
                if self.trouble == "hangs":
                    time.sleep(600)
                os.kill(os.getpid(), signal.SIGKILL)
            return number**2

        return run


SQUARES = [n**2 for n in range(20)]


@pytest.mark.parametrize("trouble", ["", "SIGKILL", "hangs"])
def test_what_happens_to_a_worker_changes_no_result(
    cluster: Cluster, tmp_path: Path, trouble: str
) -> None:
    job = Once(str(tmp_path / "marker"), trouble)
    seen: list[int] = []
    patient = replace(cluster, limit_s=1.0 if trouble == "hangs" else 600.0)
    assert list(patient.map(job, range(20), seen.append)) == SQUARES
    assert sorted(seen) == list(range(20))
    assert Path(job.marker).exists() == bool(trouble)


@dataclass(frozen=True)
class Where:
    """Squares numbers, and says in which process."""

    def open(self, place: Place, stack: ExitStack) -> Callable[[int], tuple[int, int]]:
        def run(number: int) -> tuple[int, int]:
            time.sleep(0.02)
            return number**2, os.getpid()

        return run


@dataclass(frozen=True)
class Kills:
    """Ends its worker."""

    def open(self, place: Place, stack: ExitStack) -> Callable[[int], int]:
        os.kill(os.getpid(), signal.SIGKILL)
        return lambda number: number


def test_a_worker_that_joins_late_takes_part_and_changes_no_result(tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = open_cluster(stack, "local:1", None, limit_s=60.0)
        assert cluster is not None
        results = cluster.map(Where(), range(3000))
        square, first = next(results)
        assert square == 0
        stack.enter_context(joining(str(cluster.client.scheduler.address), tmp_path))
        for number, (square, process) in enumerate(results, 1):
            assert square == number**2
            if process != first:
                break
        else:
            pytest.fail("the second worker got nothing to do")
        results.close()


@pytest.mark.parametrize("after_s", [0.0, 1.5], ids=["at-work", "before-results-are-fetched"])
def test_parts_at_home_stay_on_one_worker_until_it_dies(after_s: float) -> None:
    with ExitStack() as stack:
        cluster = open_cluster(stack, "local:2", None, limit_s=60.0)
        assert cluster is not None
        while cluster.workers < 2:
            time.sleep(0.1)
        pool = stack.enter_context(cluster.pool(Where()))

        def found(given: list[list[int]]) -> list[list[tuple[int, int]]]:
            return [[pool.take(number) for number in each] for each in given]

        def give() -> list[list[int]]:
            return [[pool.give(n, home) for n in range(20)] for home in range(2)]

        before = found(give())
        assert [[square for square, _ in each] for each in before] == [SQUARES] * 2
        places = [{process for _, process in each} for each in before]
        assert [len(place) for place in places] == [1, 1] and places[0] != places[1]
        given = give()
        (first,) = places[0]
        time.sleep(after_s)
        os.kill(first, signal.SIGKILL)
        after = found(given)
        assert [[square for square, _ in each] for each in after] == [SQUARES] * 2
        assert {process for _, process in after[1]} == places[1]
        assert after[0][-1][1] != first
        while cluster.workers < 2:
            time.sleep(0.1)
        last = found(give())  # each has one of its own again
        places = [{process for _, process in each} for each in last]
        assert [len(place) for place in places] == [1, 1] and places[0] != places[1]


def test_a_part_that_ends_its_worker_each_time_ends_the_command(tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = open_cluster(stack, "local:2", None, limit_s=60.0)
        assert cluster is not None
        pool = stack.enter_context(cluster.pool(Kills()))
        with pytest.raises(ClusterError) as found:
            pool.take(pool.give(1, 0))
        assert found.value.code == "QD-CLUSTER-WORKER-DIED"


def test_more_processes_than_cores_are_mentioned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for cores, mentioned in ((1, False), (0, True)):
        monkeypatch.setattr(machines, "available_cores", lambda cores=cores: cores)
        with ExitStack() as stack:
            open_cluster(stack, "local:1", None, limit_s=None)
        assert ("local:1 on 0 cores" in caplog.text) is mentioned


@pytest.mark.parametrize(("workers", "executions"), [(2, 8), (3, 1), (64, 5), (1, 40)])
def test_effects_are_cut_into_no_more_than_there_is(workers: int, executions: int) -> None:
    """And all workers have something to do, as far as there is enough."""
    shards, bundles = cut(executions, executions, 6, 24, workers, 0.5)
    assert 1 <= shards <= executions and 1 <= bundles <= 6
    assert shards * bundles >= min(workers, executions) / 2


@pytest.fixture
def scheduler() -> Iterator[str]:
    """The address of a scheduler without workers."""
    here = {"cls": Scheduler, "options": {**machines._HERE, "port": 0}}
    with SpecCluster(workers={}, scheduler=here) as found:
        yield found.scheduler_address


def test_workers_that_all_go_are_not_waited_for_for_ever(
    scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_NO_WORKER_S", 1.0)
    with ExitStack() as stack:
        only = stack.enter_context(joining(scheduler, tmp_path))
        cluster = open_cluster(stack, scheduler, None, limit_s=1.0)
        assert cluster is not None
        results = cluster.map(Where(), range(3000))
        next(results)
        only.kill()
        with pytest.raises(ClusterError) as found:
            list(results)
        assert found.value.code == "QD-CLUSTER-NO-WORKER"
        cluster.client.close()  # as dask does when the scheduler stays away
        with pytest.raises(ClusterError) as lost:
            list(cluster.map(Where(), range(3)))
        assert lost.value.code == "QD-CLUSTER-LOST"


def test_workers_that_are_all_paused_are_not_waited_for_for_ever(
    scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_NO_WORKER_S", 1.0)
    with ExitStack() as stack:
        stack.enter_context(joining(scheduler, tmp_path, "--memory-limit", "20MB"))
        cluster = open_cluster(stack, scheduler, None, limit_s=1.0)
        assert cluster is not None
        with pytest.raises(ClusterError, match="1 worker paused") as found:
            list(cluster.map(Where(), range(3000)))
        assert found.value.code == "QD-CLUSTER-NO-WORKER"


def test_only_time_that_is_waited_counts_as_time_without_workers(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command itself has worked for a minute, and its workers are away for a moment."""
    monkeypatch.setattr(dispatch, "_NO_WORKER_S", 30.0)
    brief = replace(cluster, limit_s=1.0)
    with brief.pool(Where()) as pool:
        number = pool.give(3)
        brief._seen = pool._looked = time.monotonic() - 60
        monkeypatch.setattr(Cluster, "addresses", lambda _: [])
        assert pool.take(number)[0] == 9


def test_a_worker_that_does_not_answer_stops_nobody(scheduler: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        workers = [stack.enter_context(joining(scheduler, tmp_path / name)) for name in "ab"]
        first = open_cluster(stack, scheduler, None, limit_s=1.0)
        assert first is not None
        while first.workers < 2:
            time.sleep(0.1)
        os.kill(workers[0].pid, signal.SIGSTOP)
        cluster = open_cluster(stack, scheduler, None, limit_s=1.0)
        assert cluster is not None
        assert [square for square, _ in cluster.map(Where(), range(20))] == SQUARES


def test_the_place_of_a_worker_that_dies_is_kept(impatient: None) -> None:
    with ExitStack() as stack:
        cluster = open_cluster(stack, "local:1", None, limit_s=60.0)
        assert cluster is not None
        ((_, process),) = cluster.map(Where(), [1])
        os.kill(process, signal.SIGKILL)
        ((square, other),) = cluster.map(Where(), [2])
        assert square == 4 and other != process


def test_units_are_not_kept_for_workers_that_all_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unit that hangs is given to another worker, which goes at that moment, while the one that
    hangs is started anew: the next to come takes it."""
    with ExitStack() as stack:
        cluster = open_cluster(stack, "local:1", None, limit_s=1.0)
        assert cluster is not None
        addresses = Cluster.addresses

        def seen(self: Cluster) -> list[str]:
            return [*addresses(self), *([] if gone else ["tcp://127.0.0.1:9"])]

        gone: list[str] = []
        start_anew, once_more = Cluster.start_anew, dispatch.Pool._once_more

        def starting(self: Cluster, address: str) -> None:
            start_anew(self, address)
            while addresses(self):
                time.sleep(0.1)

        def given(self: Any, *arguments: Any) -> None:
            once_more(self, *arguments)
            gone.append("now")

        monkeypatch.setattr(Cluster, "addresses", seen)
        monkeypatch.setattr(Cluster, "start_anew", starting)
        monkeypatch.setattr(dispatch.Pool, "_once_more", given)
        job = Once(str(tmp_path / "marker"), "hangs")
        assert list(cluster.map(job, [3])) == [9]
        assert gone


@dataclass(frozen=True)
class Slow:
    """Takes most of a second."""

    def open(self, place: Place, stack: ExitStack) -> Callable[[int], int]:
        def run(number: int) -> int:
            time.sleep(0.7)
            return number

        return run


def test_a_unit_that_waits_for_those_of_others_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two commands share a scheduler: the worker is busy for longer than a unit may take, and ours
    takes a while then."""
    anew: list[str] = []
    monkeypatch.setattr(Cluster, "start_anew", lambda _, address: anew.append(address))
    with ExitStack() as stack:
        cluster = open_cluster(stack, "local:1", None, limit_s=1.0)
        assert cluster is not None
        address = cluster.client.scheduler.address
        other = stack.enter_context(Client(address, set_as_default=False))
        busy = other.submit(time.sleep, 1.8)
        while not any(other.processing().values()):
            time.sleep(0.05)
        assert list(cluster.map(Slow(), range(2))) == [0, 1]
        assert busy.done() and not anew


@dataclass(frozen=True)
class Opens:
    """Says how often it was opened in a process."""

    folder: str

    def open(self, place: Place, stack: ExitStack) -> Callable[[int], str]:
        (Path(self.folder) / f"{os.getpid()}-{time.monotonic_ns()}").touch()

        def run(number: int) -> str:
            time.sleep(0.02)
            return str(os.getpid())

        return run


def test_a_worker_opens_a_job_once(cluster: Cluster, tmp_path: Path) -> None:
    while cluster.workers < 2:
        time.sleep(0.1)
    job = Opens(str(tmp_path))
    places = {*cluster.map(job, range(12)), *cluster.map(job, range(12))}
    opened = [path.name.partition("-")[0] for path in tmp_path.iterdir()]
    assert sorted(opened) == sorted(places)


def test_progress_is_that_of_all_workers(cluster: Cluster) -> None:
    seen: list[Progress] = []
    subset: Any = SimpleNamespace(batches=[SimpleNamespace(count=1)] * 20)
    done = cluster.over_shards(Where(), subset, seen.append, "compare", lambda part: part.start)
    assert len(list(done)) == len(seen) - 1
    assert [step.total for step in seen] == [20] * len(seen)
    assert seen[0].done == 0 and seen[-1].done == 20
    assert "worker" in seen[0].note


@dataclass(frozen=True)
class Reads:
    file: SharedFile

    def open(self, place: Place, stack: ExitStack) -> Callable[[int], tuple[int, str]]:
        text = Path(place.path(self.file)).read_text(encoding="utf-8")
        return lambda number: (number, text)


def test_a_file_that_workers_do_not_see_is_sent_once_to_each(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("held by the client", encoding="utf-8")
    # In a folder that is another one where the workers are.
    file = replace(shared_file(tmp_path / "data" / "a.txt"), folder="data")
    read: list[SharedFile] = []
    chunks = SharedFile.chunks

    def counted(self: SharedFile, size: int) -> Iterator[tuple[str, int, bytes]]:
        read.append(self)
        return chunks(self, size)

    monkeypatch.setattr(SharedFile, "chunks", counted)
    found = list(cluster.map(Reads(file), range(12)))
    assert found == [(n, "held by the client") for n in range(12)]
    assert 1 <= len(read) <= cluster.workers


def _receives_nothing(*_: object) -> None:
    pass


@pytest.mark.parametrize("instead", [None, "another one"])
def test_a_file_that_changes_meanwhile_ends_the_command(
    cluster: Cluster, tmp_path: Path, instead: str | None
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("what it was", encoding="utf-8")
    file = shared_file(path)
    path.unlink() if instead is None else path.write_text(instead, encoding="utf-8")
    with pytest.raises(ClusterError) as caught:
        list(cluster.map(Reads(file), range(2)))
    assert caught.value.code == "QD-CLUSTER-FILE-CHANGED"


def test_a_worker_that_keeps_no_file_ends_the_command(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("text", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    file = replace(shared_file(tmp_path / "data" / "a.txt"), folder="data")  # not theirs
    monkeypatch.setattr(Cluster.send.__globals__["worker"], "receive", _receives_nothing)
    with pytest.raises(ClusterError) as caught:
        list(cluster.map(Reads(file), range(2)))
    assert caught.value.code == "QD-CLUSTER-FILE-NOT-KEPT"


def test_a_file_that_is_another_one_there_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one", encoding="utf-8")
    file = shared_file(path)
    assert file.find(tmp_path / "inbox") == str(path) and file.place == ""  # it is too new
    path.write_text("two", encoding="utf-8")
    assert file.find(tmp_path / "inbox") is None


def test_processes_of_one_machine_do_not_read_what_they_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one", encoding="utf-8")
    os.utime(path, (1e9, 1e9))
    file = shared_file(path)
    read: list[Path] = []
    monkeypatch.setattr(files, "_digest", lambda folder, _: read.append(folder))
    assert file.find(tmp_path / "inbox") == str(path) and not read
    os.utime(path, (1e9, 1e9 + 1))
    file.find(tmp_path / "inbox")
    assert read
    os.utime(path, (1e9, 1e9 + 2))  # nothing is known of it
    elsewhere = replace(file, place="of another machine")
    read.clear()
    elsewhere.find(tmp_path / "inbox")
    assert read


def test_a_file_more_in_a_folder_makes_it_another_one(tmp_path: Path) -> None:
    (tmp_path / "b.npy").write_bytes(b"1")
    folder = shared_file(tmp_path)
    assert folder.is_there()
    (tmp_path / "a.npy").write_bytes(b"1")
    assert not folder.is_there() and folder.find(tmp_path / "inbox") is None


def test_of_large_files_some_blocks_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_WHOLE_BYTES", 1000)
    monkeypatch.setattr(files, "_BLOCKS", 10)
    monkeypatch.setattr(files, "_BLOCK_BYTES", 10)
    for number in range(4):
        (tmp_path / f"{number}.bin").write_bytes(bytes(500))
    (tmp_path / "4.bin").write_bytes(b"")
    digests = {shared_file(tmp_path).digest}
    for number, place in ((0, 0), (1, 0), (3, 499)):  # in a block, in none, in the last one
        data = bytearray(500)
        data[place] = 1
        (tmp_path / f"{number}.bin").write_bytes(data)
        digests.add(shared_file(tmp_path).digest)
    assert len(digests) == 3
    (tmp_path / "4.bin").write_bytes(b"1")
    assert shared_file(tmp_path).digest not in digests


@dataclass(frozen=True)
class Raises:
    def open(self, place: Place, stack: ExitStack) -> Callable[[int], int]:
        def run(number: int) -> int:
            if number == 2:
                raise SampleError("damaged", "a hint", code="QD-SAMPLES-DAMAGED")
            if number == 4:
                raise ZeroDivisionError
            return number

        return run


def test_errors_of_workers_are_the_errors_of_the_command(cluster: Cluster) -> None:
    with pytest.raises(SampleError) as found:
        list(cluster.map(Raises(), [1, 2, 3]))
    assert found.value.code == "QD-SAMPLES-DAMAGED"
    assert found.value.hint == "a hint"
    with pytest.raises(ClusterError, match="ZeroDivisionError") as other:
        list(cluster.map(Raises(), [4]))
    assert other.value.code == "QD-CLUSTER-WORKER-FAILED"


def test_a_worker_of_another_version_is_refused(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, *others = unit.Unit.__init__.__defaults__ or ()
    monkeypatch.setattr(unit.Unit.__init__, "__defaults__", ("0.0.0", *others))
    with pytest.raises(ClusterError) as found:
        list(cluster.map(Once(str(tmp_path / "marker")), range(2)))
    assert found.value.code == "QD-CLUSTER-VERSION"


@pytest.mark.parametrize(
    ("executions", "count"),
    [(0, 0), (1, 1), (7, 7), (16, 16), (100, 16), (256, 32), (1000, 125), (12500, 256)],
)
def test_shards_hold_every_execution_once(executions: int, count: int) -> None:
    parts = shards(executions)
    assert [i for p in parts for i in range(p.start, p.stop)] == list(range(executions))
    assert len(parts) == count
    sizes = {p.stop - p.start for p in parts} or {0}
    assert max(sizes) - min(sizes) <= 1
    assert all(isinstance(p, Shard) for p in parts)


def test_where_to_spread_is_checked() -> None:
    assert parse_cluster("local:4") == "local:4"
    assert parse_cluster("tcp://host:8786") == "tcp://host:8786"
    assert parse_cluster("tls://[::1]:65535") == "tls://[::1]:65535"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        *((text, "must be local:N") for text in ("4", "local", "host:8786", "http://x:1")),
        *((text, "must be local:N") for text in ("inproc://x", "ucx://x:1")),
        *((text, "from 1 to 9999") for text in ("local:0", "local:x", "local:-1", "local:")),
        *((f"tcp://h:{port}", "1 to 65535") for port in ("abc", "99999", "0", "", "1/x", "\u0661")),
        ("tcp://localhost", "port is missing"),
        ("tls://", "host:port"),
        ("tcp://a b:1", "host:port"),
    ],
)
def test_what_is_wrong_with_an_address_is_said(wrong: str, why: str) -> None:
    with pytest.raises(QdebugError, match=why) as found:
        validated(CompareSettings, {"cluster": wrong})
    assert (found.value.code, found.value.exit_code) == ("QD-USAGE-VALUE", 2)
    assert "local:4" in found.value.hint


@pytest.mark.parametrize("wrong", ["nan", "abc"])
def test_a_time_is_a_number_of_seconds(wrong: str) -> None:
    with pytest.raises(QdebugError, match="must be a number of seconds") as found:
        validated(CompareSettings, {"unit_timeout": wrong})
    assert found.value.code == "QD-USAGE-VALUE"


@pytest.mark.parametrize("answer", [None, b"", b"HTTP/1.0 400 Bad request\r\n\r\n", b"\0" * 64])
def test_who_answers_and_is_no_scheduler_is_told_from_nobody(
    answer: bytes | None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machines, "_CONNECT_S", 0.5)
    monkeypatch.setattr(machines, "_ANSWER_S", 0.2)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        address = f"tcp://127.0.0.1:{listening.getsockname()[1]}"

        def serve() -> None:
            other, _ = listening.accept()
            with other:
                other.recv(1)
                if answer is None:
                    time.sleep(1)
                else:
                    other.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        error = refused(address, None)
        thread.join()
    assert (error.code, error.exit_code) == ("QD-CLUSTER-NO-WORKER", 2)
    assert error.message == f"what answers at {address} is not a dask scheduler"
    assert capfd.readouterr() == ("", "")


def test_tls_needs_certificates() -> None:
    error = refused("tls://127.0.0.1:1", None)
    assert (error.code, error.exit_code) == ("QD-CLUSTER-NO-WORKER", 2)
    assert "certificates" in error.message


def certificates(info: dict[str, str]) -> Security | None:
    """A loader as dask's configuration names it."""
    if info["address"].startswith("tls:"):
        raise ValueError("no certificates today")
    return None


def test_a_loader_of_certificates_is_asked_before_a_scheduler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machines, "_CONNECT_S", 0.5)
    with dask.config.set({"distributed.client.security-loader": f"{__name__}.certificates"}):
        assert "no certificates today" in refused("tls://127.0.0.1:1", None).message
        assert "no scheduler answers" in refused("tcp://127.0.0.1:1", None).message


def opened(address: str | None, config: Path | None) -> str:
    """The code of the error."""
    return refused(address, config).code


def refused(address: str | None, config: Path | None) -> QdebugError:
    with pytest.raises(QdebugError) as found, ExitStack() as stack:
        open_cluster(stack, address, str(config) if config else None, limit_s=5.0)
    return found.value


def test_what_cannot_be_opened_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "cluster.yaml"
    config.write_text("kind: cloud\n", encoding="utf-8")
    assert opened("local:2", config) == "QD-USAGE-CLUSTER"
    assert opened(None, config) == "QD-USAGE-CONFIG-FILE"
    config.write_text("kind: lsf\n", encoding="utf-8")
    assert opened(None, config) == "QD-CLUSTER-START"  # there is no bsub
    monkeypatch.setattr(machines, "_CONNECT_S", 0.5)
    assert opened("tcp://127.0.0.1:1", None) == "QD-CLUSTER-NO-WORKER"
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert opened("local:2", None) == "QD-CLUSTER-NOT-INSTALLED"
    error = refused(None, config)
    assert (error.code, "cluster_config" in error.message) == ("QD-CLUSTER-NOT-INSTALLED", True)


def test_each_process_gets_a_gpu_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-5")
    gpus = machines.visible_gpus()
    specs = machines.worker_specs(3, tmp_path, gpus)
    envs = [specs[k]["options"]["env"]["CUDA_VISIBLE_DEVICES"] for k in range(3)]
    assert envs == ["3", "GPU-5", "3"]
    assert "CUDA_VISIBLE_DEVICES" not in machines.worker_specs(1, tmp_path, ())[0]["options"]["env"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machines.visible_gpus() == ()
