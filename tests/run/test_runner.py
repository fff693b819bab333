"""Runner: the same results whoever runs them, what is kept, failures, time and interruptions."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.backends.simulation import SimulationBackend
from qdebug.errors import BackendError, MetricError, ModelError
from qdebug.memo import Memo
from qdebug.metrics.accumulate import REFERENCE, Comparison, ErrorTotals, ExecutedBatch
from qdebug.network.samples.subset import SampleSubset, spread, whole
from qdebug.network.samplespec import SampleSpec
from qdebug.run.reducers import Errors, Outputs
from qdebug.run.runner import Data, Runner, jobs_of
from qdebug.run.timelimit import OutOfTimeError
from qdebug.run.variant import Variant, as_it_is
from qdebug.types import Feeds, Progress, TensorSpec

X = np.random.default_rng(0).normal(size=(37, 4)).astype(np.float32)


def product(weight: float) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    w = np.full((4, 3), weight, np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Tanh", ["m"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, ["N", 4])],
        [value("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(w, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def samples(folder: Path, batch_size: int = 2) -> SampleSubset:
    np.savez(folder / "x.npz", x=X)
    spec = SampleSpec(str(folder / "x.npz"), batch_size=batch_size)
    return whole(spec.open([TensorSpec("x", ("N", 4), np.dtype(np.float32))]))


@dataclass
class Counting:
    """A backend that counts what it opens and executes."""

    opened: int = 0
    runs: int = 0
    open_now: int = 0
    most_open: int = 0
    name: str = "simulation"
    results_key: str = "simulation"
    inner: SimulationBackend = field(default_factory=lambda: SimulationBackend(1))

    def open(self, proto: onnx.ModelProto, capture: Sequence[str]) -> Any:
        session = self.inner.open(proto, capture)
        run, close = session.run, session.close
        self.opened += 1
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)

        def counted(feeds: Feeds) -> Any:
            self.runs += 1
            return run(feeds)

        def closed() -> None:
            self.open_now -= 1
            close()

        session.run, session.close = counted, closed  # type: ignore[method-assign]
        return session


def setting(backend: Any, candidates: int = 5) -> tuple[dict[str, Variant], dict[str, Errors]]:
    variants = {REFERENCE: as_it_is(product(0.5), backend, {"inner": "m"}, shared=True)}
    reducers = {}
    for k in range(candidates):
        variants[f"v{k}"] = as_it_is(product(0.5 + 0.01 * k), backend, {"inner": "m"})
        reducers[f"v{k}"] = Errors(Comparison(candidate=f"v{k}", tensors=("y", "inner")))
    return variants, reducers


def figures(results: Mapping[str, ErrorTotals]) -> dict[str, tuple[float, ...]]:
    return {n: tuple(s.sq_err for s in r.tensors.values()) for n, r in results.items()}


def test_errors_are_those_of_plain_onnx_runtime(tmp_path: Path) -> None:
    variants, reducers = setting(SimulationBackend(1), 2)
    found = Runner(samples(tmp_path)).run(variants, reducers)
    plain = [
        ort.InferenceSession(product(w).SerializeToString()).run(None, {"x": X})[0].astype(float)
        for w in (0.5, 0.51)
    ]
    expected = ((plain[0] - plain[1]) ** 2).sum()
    assert found["v1"].tensors["y"].sq_err == pytest.approx(expected, rel=1e-5)
    assert found["v0"].tensors["y"].sq_err == 0
    assert found["v1"].tensors["inner"].sq_err > 0


def test_the_number_of_threads_changes_no_bit(tmp_path: Path) -> None:
    found = [
        figures(Runner(samples(tmp_path, 1), workers=n).run(*setting(SimulationBackend(1))))
        for n in (1, 2, 5)
    ]
    assert found[0] == found[1] == found[2]


def test_a_shared_variant_runs_once_and_few_sessions_are_open(tmp_path: Path) -> None:
    backend = Counting()
    subset = samples(tmp_path)
    runner = Runner(subset, workers=2)
    runner.run(*setting(backend, 12))
    batches = len(subset.batches)
    assert batches == 19
    # Two threads may each run a batch of it that none has finished yet.
    assert 13 * batches <= backend.runs <= 13 * batches + 2
    assert backend.opened == 13
    assert backend.most_open <= 5
    assert backend.open_now == 0
    before = backend.runs
    runner.run(*setting(backend, 1))  # what the reference gave is still held
    assert backend.runs == before + batches


def test_reducers_of_one_variant_run_it_once(tmp_path: Path) -> None:
    backend = Counting()
    variants, _ = setting(backend, 1)
    variants[REFERENCE] = as_it_is(product(0.5), backend)
    found = Runner(samples(tmp_path, 37)).run(
        variants,
        {
            "errors": Errors(Comparison(candidate="v0", tensors=("y",))),
            "outputs": Outputs("v0", ("y",)),
            "of reference": Outputs(REFERENCE, ("y",)),
        },
    )
    assert backend.runs == 2
    [(batch, tensors)] = found["outputs"].items()
    assert batch.count == 37
    assert tensors["y"].shape == (37, 3)


def test_what_is_kept_is_not_run_again(tmp_path: Path) -> None:
    backend, memo = Counting(), Memo(tmp_path / "memo")
    first = figures(Runner(samples(tmp_path), memo=memo).run(*setting(backend)))
    runs = backend.runs
    again = Runner(samples(tmp_path), memo=Memo(tmp_path / "memo"))
    assert figures(again.run(*setting(backend))) == first
    assert backend.runs == runs
    other = Runner(spread(samples(tmp_path), 8), memo=memo)
    assert figures(other.run(*setting(backend))) != first
    assert backend.runs > runs


def test_pictures_are_known_by_their_files(tmp_path: Path) -> None:
    Image = pytest.importorskip("PIL.Image")  # noqa: N806
    folder = tmp_path / "pictures"
    folder.mkdir()
    for k in range(3):
        Image.fromarray(np.full((8, 8, 3), 60 * k, np.uint8)).save(folder / f"{k}.png")

    def opened() -> SampleSubset:
        spec = TensorSpec("x", (1, 3, 8, 8), np.dtype(np.float32))
        return whole(SampleSpec(str(folder)).open([spec]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qdebug.network.samples.samples.Samples.feeds", lambda *_: 1 / 0)
        before = Data(opened()).digest
        assert Data(opened()).digest == before
        assert Data(spread(opened(), 1)).digest != before
        Image.fromarray(np.full((8, 8, 3), 7, np.uint8)).save(folder / "1.png")
        assert Data(opened()).digest != before


def test_half_of_a_run_is_kept_when_the_other_half_fails(tmp_path: Path) -> None:
    memo, backend = Memo(tmp_path / "memo"), Counting()
    variants, reducers = setting(backend)
    taken = Runner(samples(tmp_path), memo=memo).each(variants, reducers)
    before = [next(taken), next(taken)]
    taken.close()  # as if the program were killed
    assert backend.open_now == 0
    runs = backend.runs
    rest = Runner(samples(tmp_path), memo=memo).run(variants, reducers)
    assert backend.runs - runs <= 4 * 19
    uninterrupted = Runner(samples(tmp_path)).run(variants, reducers)
    assert figures(rest) == figures(uninterrupted)
    assert figures(dict(before)) == {n: figures(rest)[n] for n, _ in before}


@pytest.mark.parametrize("damage", [b"", b"too short", bytes(400)])
def test_a_damaged_result_is_computed_again(tmp_path: Path, damage: bytes) -> None:
    memo = Memo(tmp_path / "memo")
    memo.put("key", {"a": 1})
    assert memo.get("key") == {"a": 1}
    [path] = (tmp_path / "memo").iterdir()
    path.write_bytes(damage)
    assert memo.get("key") is None


def test_a_kept_result_cannot_run_code(tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo")
    memo.put("key", partial(_thread.interrupt_main))
    assert memo.get("key") is None


def test_a_memo_forgets_what_was_used_longest_ago(tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo", limit_bytes=40_000)
    for k in range(60):
        memo.put(f"{k}", bytes(1500))
        memo.get("0")
        time.sleep(0.001)
    total = sum(p.stat().st_size for p in (tmp_path / "memo").iterdir())
    assert total <= 50_000
    assert memo.get("59") is not None
    assert memo.get("0") is not None
    assert memo.get("1") is None
    memo.put("large", bytes(30_000))
    assert memo.get("large") is None


def test_an_unwritable_folder_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    memo = Memo(tmp_path / "file")
    memo.put("key", 1)
    assert memo.get("key") is None


def _fails() -> onnx.ModelProto:
    raise ModelError("no such layer", code="QD-MODEL-X")


def test_a_failure_is_a_result_where_it_is_attempted(tmp_path: Path) -> None:
    variants, reducers = setting(SimulationBackend(1), 3)
    variants["v1"] = Variant(_fails, SimulationBackend(1))
    runner = Runner(samples(tmp_path), workers=2)
    found = runner.run(variants, reducers, attempt=True)
    assert isinstance(found["v1"], ModelError)
    assert figures({"v2": found["v2"]})
    with pytest.raises(ModelError, match="no such layer"):
        runner.run(variants, reducers)


def test_batches_are_given_one_by_one_until_enough_are_seen(tmp_path: Path) -> None:
    backend, told = Counting(), list[Progress]()
    variants = {REFERENCE: as_it_is(product(0.5), backend)}
    runner = Runner(samples(tmp_path), workers=2, progress=told.append)
    with closing(runner.batches(variants, "run")) as batches:
        seen = list(islice(batches, 3))
    assert [one.batch.index for one in seen] == [0, 1, 2]
    assert all(one.reference["y"].shape[0] == one.batch.count for one in seen)
    assert backend.runs < 8 and backend.open_now == 0
    assert [x.done for x in told] == [seen[0].batch.count, sum(x.batch.count for x in seen[:2])]
    variants[REFERENCE] = Variant(_fails, SimulationBackend(1))
    with pytest.raises(ModelError, match="no such layer"):
        next(runner.batches(variants))


def test_an_error_of_a_reducer_is_raised(tmp_path: Path) -> None:
    class Refusing(Outputs):
        def reduce(self, executed: ExecutedBatch) -> Any:
            raise MetricError("no", code="QD-METRIC-X")

    variants, _ = setting(SimulationBackend(1), 1)
    with pytest.raises(MetricError):
        Runner(samples(tmp_path)).run(variants, {"r": Refusing("v0", ("y",))}, attempt=True)


@dataclass
class Slow:
    """A backend of which each execution takes ten seconds, unless it is interrupted."""

    name: str = "slow"
    begun: threading.Event = field(default_factory=threading.Event)
    stopped: threading.Event = field(default_factory=threading.Event)
    dtypes: dict[str, Any] = field(default_factory=dict)
    skipped: tuple[Any, ...] = ()

    def open(self, proto: onnx.ModelProto, capture: Sequence[str]) -> Slow:
        return self

    def run(self, feeds: Feeds) -> Any:
        self.begun.set()
        if self.stopped.wait(10):
            raise BackendError("interrupted", code="QD-BACKEND-CLOSED")
        raise AssertionError("nobody interrupted it")

    def interrupt(self) -> None:
        self.stopped.set()

    def close(self) -> None:
        pass


def test_a_time_limit_ends_an_execution(tmp_path: Path) -> None:
    slow = Slow()
    runner = Runner(samples(tmp_path), ends_at=time.monotonic() + 0.3)
    started = time.monotonic()
    with pytest.raises(OutOfTimeError):
        runner.run({"v": as_it_is(product(1), slow)}, {"o": Outputs("v", ("y",))}, "stage")
    assert time.monotonic() - started < 5
    assert slow.stopped.is_set()


def interrupted(folder: Path) -> int:
    """Run until Ctrl-C, which comes as soon as a batch has begun; 0 if that ended within 5 s."""
    slow, process, started = Slow(), os.getpid(), time.monotonic()
    threading.Thread(target=lambda: slow.begun.wait(10) and os.kill(process, signal.SIGINT)).start()
    try:
        variants = {"v": as_it_is(product(1), slow)}
        Runner(samples(folder)).run(variants, {"o": Outputs("v", ("y",))})
    except KeyboardInterrupt:
        return 0 if slow.stopped.is_set() and time.monotonic() - started < 5 else 2
    return 1


def test_ctrl_c_ends_an_execution(tmp_path: Path) -> None:
    """In a process of its own, which has the signal to itself."""
    code = (
        "import sys, pathlib, test_runner;"
        "sys.exit(test_runner.interrupted(pathlib.Path(sys.argv[1])))"
    )
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0


def test_onnx_runtime_is_interrupted_inside_of_a_model() -> None:
    node = helper.make_node("MatMul", ["a", "a"], ["b0"])
    nodes = [node, *(helper.make_node("MatMul", [f"b{k}", "a"], [f"b{k + 1}"]) for k in range(400))]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("a", 1, [700, 700])], [value("b400", 1, [700, 700])]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = SimulationBackend(1).open(proto, ())
    timer = threading.Timer(0.2, session.interrupt)
    timer.start()
    with pytest.raises(BackendError):
        session.run({"a": np.zeros((700, 700), np.float32)})
    session.close()


def test_progress_counts_the_samples_of_all_jobs(tmp_path: Path) -> None:
    told: list[Any] = []
    Runner(samples(tmp_path), progress=told.append).run(*setting(SimulationBackend(1), 3), "run")
    assert {p.stage for p in told} == {"run"}
    assert told[-1].done == told[-1].total == 3 * 37
    assert [p.done for p in told] == sorted(p.done for p in told)


def test_a_sink_takes_each_batch_in_order(tmp_path: Path) -> None:
    variants, reducers = setting(SimulationBackend(1), 1)
    taken: list[Any] = []
    both: dict[str, Any] = {"y": Outputs("v0", ("y",)), **reducers}
    found = Runner(samples(tmp_path), workers=3).run(variants, both, sinks={"y": taken.append})
    assert set(found) == {"v0"}
    assert [batch.start for one in taken for batch in one] == list(range(0, 37, 2))
    assert figures(found) == figures(Runner(samples(tmp_path)).run(variants, reducers))


def test_a_variant_runs_on_its_batches_only(tmp_path: Path) -> None:
    backend = Counting()
    few = replace(as_it_is(product(0.5), backend), batches=frozenset({1, 4}))
    found = Runner(samples(tmp_path)).run({"few": few}, {"y": Outputs("few", ("y",))})["y"]
    assert [bool(tensors) for tensors in found.values()] == [k in {1, 4} for k in range(19)]
    assert backend.runs == 2


def test_variants_of_one_model_share_a_session(tmp_path: Path) -> None:
    backend = Counting()
    one = as_it_is(product(0.5), backend)
    twice = replace(one, feeds=lambda executed: {"x": 2 * executed.feeds["x"]})
    variants = {"one": one, "twice": twice}
    errors = Errors(Comparison("one", "twice", ("y",)))
    found = Runner(samples(tmp_path, 37)).run(variants, {"errors": errors})["errors"]
    assert found.tensors["y"].sq_err > 0
    assert (backend.opened, backend.runs) == (1, 2)


def test_a_variant_reads_the_tensors_of_the_one_that_feeds_it(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Neg", ["m"], ["z"])],
        "g",
        [value("m", TensorProto.FLOAT, ["N", 3])],
        [value("z", TensorProto.FLOAT, ["N", 3])],
    )
    local = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    backend = SimulationBackend(1)
    variants = {
        REFERENCE: as_it_is(product(0.5), backend, {"m": "m"}, shared=True),
        "local": Variant(
            lambda: local, backend, "neg", reads=(REFERENCE,), feeds=lambda one: one.reference
        ),
    }
    found = Runner(samples(tmp_path, 37)).run(
        variants, {"z": Outputs("local", ("z",)), "m": Outputs(REFERENCE, ("m",))}
    )
    [z], [m] = found["z"].values(), found["m"].values()
    assert np.array_equal(z["z"], -m["m"])


def test_jobs_join_what_shares_a_variant() -> None:
    none: Callable[[], onnx.ModelProto] = partial(product, 1)
    variants = {n: Variant(none, SimulationBackend(1), n, shared=n == "s") for n in "sabc"}
    reducers = {
        "1": Errors(Comparison("s", "a")),
        "2": Errors(Comparison("s", "b")),
        "3": Errors(Comparison("a", "c")),
        "4": Outputs("s", ("y",)),
    }
    jobs = jobs_of(variants, reducers)
    assert [sorted(job.reducers) for job in jobs] == [["2"], ["1", "3"], ["4"]]
    assert [sorted(job.variants) for job in jobs] == [["b", "s"], ["a", "c", "s"], ["s"]]
