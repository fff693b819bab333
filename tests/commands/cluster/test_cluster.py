"""The executor on dask: work that ends its worker, raises, or needs files."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import onnx
import pytest
from patience import PATIENCE_S

from qdebug.config.compare import CompareSettings
from qdebug.config.shared import ClusterSettings, parse_cluster
from qdebug.config.validate import settled
from qdebug.errors import ClusterError, QdebugError, SampleError
from qdebug.execute.cluster import dispatch, files, machines
from qdebug.execute.cluster.dispatch import DaskExecutor
from qdebug.execute.cluster.files import SharedFile, shared_file
from qdebug.execute.cluster.machines import open_executor
from qdebug.network.weights import Place, declare
from qdebug.run.executor import THIS_PROCESS, shards_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it


def squares(stack: ExitStack, *, marker: Path, dies: bool = False) -> Callable[[int], int]:
    """Squares numbers; the first process that is given a 3 may die."""

    def run(number: int) -> int:
        if number == 3 and dies and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number**2

    return run


def test_results_are_in_order_and_a_worker_that_dies_changes_none(
    executor: DaskExecutor, tmp_path: Path
) -> None:
    work = partial(squares, marker=tmp_path / "marker", dies=True)
    given: list[int] = []

    def parts() -> Any:
        for number in range(40):
            given.append(number)
            yield number

    results = executor.map(work, parts())
    assert len(given) < 20  # the others wait until the first results are taken
    assert list(results) == [n**2 for n in range(40)]
    assert (tmp_path / "marker").exists()
    work = partial(squares, marker=tmp_path / "marker")
    assert list(THIS_PROCESS.map(work, range(40))) == [n**2 for n in range(40)]


def where(stack: ExitStack, *, folder: Path) -> Callable[[int], tuple[int, int]]:
    """Says in which process a number was."""
    (folder / f"{os.getpid()}-{time.monotonic_ns()}").touch()

    def run(number: int) -> tuple[int, int]:
        time.sleep(0.02)
        return number, os.getpid()

    return run


def test_what_is_near_stays_on_one_worker_which_opens_the_work_once(
    executor: DaskExecutor, tmp_path: Path
) -> None:
    executor.client.wait_for_workers(2)
    places: dict[int, set[int]] = {0: set(), 1: set()}
    for _ in range(2):
        work = partial(where, folder=tmp_path)
        for number, process in executor.map(work, range(12), lambda n: n % 2):
            places[number % 2].add(process)
    assert [len(place) for place in places.values()] == [1, 1] and places[0] != places[1]
    opened = [int(path.name.partition("-")[0]) for path in tmp_path.iterdir()]
    assert sorted(opened) == sorted(places[0] | places[1])


def dying(stack: ExitStack) -> Callable[[int], int]:
    os.kill(os.getpid(), signal.SIGKILL)
    return lambda number: number


def raising(stack: ExitStack) -> Callable[[int], int]:
    def run(number: int) -> int:
        if number == 2:
            raise SampleError("damaged", "a hint", code="QD-SAMPLES-DAMAGED")
        raise ZeroDivisionError

    return run


def test_errors_of_workers_are_those_of_the_command(
    executor: DaskExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SampleError) as found:
        list(executor.map(raising, [2]))
    assert (found.value.code, found.value.hint) == ("QD-SAMPLES-DAMAGED", "a hint")
    with pytest.raises(ClusterError, match="ZeroDivisionError") as other:
        list(executor.map(raising, [4]))
    assert other.value.code == "QD-CLUSTER-WORKER-FAILED"
    monkeypatch.setattr(executor.client.cluster.scheduler, "allowed_failures", 0)
    with pytest.raises(ClusterError) as died:
        list(executor.map(dying, [1]))
    assert died.value.code == "QD-CLUSTER-WORKER-DIED"


def test_a_worker_of_another_version_is_refused(
    executor: DaskExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "__version__", "0.0.0")
    with pytest.raises(ClusterError) as found:
        list(executor.map(partial(raising), [1]))
    assert found.value.code == "QD-CLUSTER-VERSION"


def test_a_scheduler_that_is_gone_is_told(
    executor: DaskExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor.client, "scheduler_info", lambda **_: {})
    with pytest.raises(ClusterError) as found:
        executor.map(raising, [1])
    assert found.value.code == "QD-CLUSTER-LOST"


def reading(stack: ExitStack, *, file: SharedFile) -> Callable[[int], str]:
    text = Path(file.checked()).read_text(encoding="utf-8")
    return lambda _: text


@pytest.mark.parametrize(
    ("instead", "code"),
    [(None, "QD-CLUSTER-FILE-NOT-SEEN"), ("another one", "QD-CLUSTER-FILE-CHANGED")],
)
def test_files_that_workers_do_not_see_are_named(
    executor: DaskExecutor, tmp_path: Path, instead: str | None, code: str
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("what it was", encoding="utf-8")
    file = shared_file(path)
    assert list(executor.map(partial(reading, file=file), [0])) == ["what it was"]
    path.unlink() if instead is None else path.write_text(instead, encoding="utf-8")
    with pytest.raises(ClusterError) as caught:
        # Of work that is not equal to what the workers have open.
        list(executor.map(partial(reading, file=replace(file, made=True)), [0]))
    assert caught.value.code == code
    assert str(path) in caught.value.message and "tcp://127.0.0.1" in caught.value.message


def names_of(stack: ExitStack, model: onnx.ModelProto) -> Callable[[int], str]:
    return lambda _: model.graph.initializer[0].name


def test_weights_that_workers_do_not_see_are_named(executor: DaskExecutor, tmp_path: Path) -> None:
    path, model = tmp_path / "weights.bin", onnx.ModelProto()
    path.write_bytes(bytes(4))
    place = Place(path, 0, 4, "0")
    model.graph.initializer.append(declare("w", onnx.TensorProto.FLOAT, (1,), place))
    assert list(executor.map(partial(names_of, model=model), [0])) == ["w"]
    path.unlink()
    model.graph.name = "not equal to what workers have open"
    with pytest.raises(ClusterError) as caught:
        list(executor.map(partial(names_of, model=model), [0]))
    assert caught.value.code == "QD-CLUSTER-FILE-NOT-SEEN" and str(path) in caught.value.message


def test_a_file_more_in_a_folder_makes_it_another_one(tmp_path: Path) -> None:
    (tmp_path / "b.npy").write_bytes(b"1")
    folder = shared_file(tmp_path)
    assert folder.checked() == str(tmp_path)
    (tmp_path / "a.npy").write_bytes(b"1")
    with pytest.raises(ClusterError):
        folder.checked()


def test_of_large_files_some_blocks_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_BLOCKS", 10)
    monkeypatch.setattr(files, "_BLOCK_BYTES", 10)
    for number in range(4):
        (tmp_path / f"{number}.bin").write_bytes(bytes(500))
    digests = {shared_file(tmp_path).digest}
    for number, place in ((0, 0), (1, 0), (3, 499)):  # in a block, in none, in the last one
        data = bytearray(500)
        data[place] = 1
        (tmp_path / f"{number}.bin").write_bytes(data)
        digests.add(shared_file(tmp_path).digest)
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("executions", "count"),
    [
        (0, 0),
        (1, 1),
        (7, 7),
        (16, 16),
        (100, 16),
        (256, 32),
        (1000, 125),
        (5000, 313),
        (12500, 782),
    ],
)
def test_shards_hold_every_execution_once(executions: int, count: int) -> None:
    parts = shards_of(executions)
    assert [i for p in parts for i in range(p.start, p.stop)] == list(range(executions))
    assert len(parts) == count
    sizes = {p.stop - p.start for p in parts} or {0}
    assert max(sizes) - min(sizes) <= 1
    assert count <= executions and max(sizes) <= 16


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
        ("tcp://localhost", "host:port"),
        ("tls://", "host:port"),
        ("tcp://a b:1", "host:port"),
    ],
)
def test_what_is_wrong_with_an_address_is_said(wrong: str, why: str) -> None:
    with pytest.raises(QdebugError, match=why) as found:
        settled(CompareSettings, {"model": "m", "inputs": "i", "cluster": wrong})
    assert (found.value.code, found.value.exit_code) == ("QD-USAGE-VALUE", 2)
    assert "local:4" in found.value.hint


def refused(address: str) -> QdebugError:
    with pytest.raises(QdebugError) as found, ExitStack() as stack:
        open_executor(stack, ClusterSettings(cluster=address))
    return found.value


def test_where_no_scheduler_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "_CONNECT_S", 0.5)
    error = refused("tcp://127.0.0.1:1")
    assert (error.code, error.exit_code) == ("QD-CLUSTER-NO-WORKER", 2)
    assert "certificates" in refused("tls://127.0.0.1:1").message


_REFUSED = """
import os
import sys
from contextlib import ExitStack
from qdebug.config.shared import ClusterSettings
from qdebug.errors import ClusterStartError
from qdebug.execute.cluster import machines
machines._CONNECT_S = 0.5
try:
    machines.open_executor(ExitStack(), ClusterSettings(cluster=sys.argv[1]))
except ClusterStartError as error:
    print(error.code, flush=True)
    os._exit(0)  # how dask throws away a half-made client at exit is not what is looked at
"""


@pytest.mark.parametrize("answer", [None, b"HTTP/1.0 400 Bad request\r\n\r\n"])
def test_who_is_no_scheduler_is_not_waited_for(answer: bytes | None) -> None:
    """In a process of its own: how much dask logs is decided when it is imported."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def serve() -> None:
            other, _ = listening.accept()
            with other:
                other.recv(1)
                if answer is None:
                    time.sleep(3)
                else:
                    other.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        command = [sys.executable, "-c", _REFUSED, address]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        thread.join()
    assert (ended.stdout, ended.stderr) == ("QD-CLUSTER-NO-WORKER\n", "")


def test_dask_may_not_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert refused("local:2").code == "QD-CLUSTER-NOT-INSTALLED"


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
