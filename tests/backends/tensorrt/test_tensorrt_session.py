"""An engine as a session, on a fake GPU: memory, places to run, and what is refused."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from refusals import refused

from qdebug.backends.tensorrt.build.settings import BuildSettings, ShapeRange
from qdebug.backends.tensorrt.execute.cuda import DeviceMemoryError, open_cuda
from qdebug.backends.tensorrt.execute.device import find_device
from qdebug.backends.tensorrt.execute.runtime import load_engine
from qdebug.backends.tensorrt.execute.session import TensorRTSession
from qdebug.errors import BackendError
from qdebug.testing.cuda import FakeCuda
from qdebug.testing.tensorrt import fake_maker

X = np.arange(4, dtype=np.float32) - 2
BYTES = X.nbytes * 2
"""What one place to run takes of the GPU: x and y."""


def relu() -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], "relu")],
        "g",
        [value("x", TensorProto.FLOAT, ["N"])],
        [value("y", TensorProto.FLOAT, ["N"])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def opened(cuda: FakeCuda, **options: Any) -> TensorRTSession:
    maker = fake_maker(BuildSettings(profile={"x": ShapeRange((1,), (4,), (8,))}), cuda)
    return TensorRTSession(maker.make(relu())[0], **options)


def together(session: TensorRTSession, runs: int) -> list[Any]:
    """Run from as many threads at once."""
    barrier = threading.Barrier(runs)

    def one(k: int) -> Any:
        barrier.wait()
        return session.run({"x": X * k})["y"]

    with ThreadPoolExecutor(runs) as pool:
        return list(pool.map(one, range(runs)))


def test_everything_is_freed() -> None:
    cuda = FakeCuda()
    with opened(cuda) as session:
        session.run({"x": X})
        assert cuda.used_bytes == BYTES
        session.run({"x": np.ones(8, np.float32)})
        assert cuda.used_bytes == 2 * BYTES  # grown, and what was there is given back
        session.layer_times({"x": X}, rounds=2)
        assert cuda.used_bytes == 2 * BYTES
    assert cuda.used_bytes == 0
    forgotten = opened(cuda)
    forgotten.run({"x": X})
    del forgotten
    assert cuda.used_bytes == 0


def test_executions_of_several_threads_take_turns_in_one_place() -> None:
    cuda = FakeCuda(limit_bytes=BYTES)
    with opened(cuda) as session:
        for k, found in enumerate(together(session, 6)):
            np.testing.assert_array_equal(found, np.maximum(X * k, 0))
        session.release()
        assert cuda.used_bytes == 0
        np.testing.assert_array_equal(session.run({"x": X})["y"], np.maximum(X, 0))


def test_without_room_it_says_so_and_goes_on_when_there_is() -> None:
    cuda = FakeCuda(limit_bytes=BYTES - 1)
    with opened(cuda) as session:
        with pytest.raises(DeviceMemoryError, match="no memory"):
            session.run({"x": X})
        cuda.limit_bytes = BYTES
        np.testing.assert_array_equal(session.run({"x": X})["y"], np.maximum(X, 0))
    assert cuda.used_bytes == 0


def test_times() -> None:
    with opened(FakeCuda()) as session:
        assert session.latency_ms({"x": X}, rounds=3) == 1.0
        assert [(t.name, t.ms) for t in session.layer_times({"x": X})] == [("relu", 0.5)]


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        (np.ones(9, np.float32), r"'x' .*\[9\].* \[1\] to \[8\]"),
        (np.ones((2, 2), np.float32), r"'x' .*\[2, 2\]"),
        (np.ones(4), "'x' .*float32.*float64"),
    ],
)
def test_feeds_that_do_not_fit_are_named(feed: Any, message: str) -> None:
    with opened(FakeCuda()) as session, pytest.raises(BackendError, match=message):
        session.run({"x": feed})


def test_closed_while_others_wait() -> None:
    session = opened(FakeCuda())
    session.close()
    for use in (session.run, session.latency_ms, session.layer_times):
        with pytest.raises(BackendError, match="closed"):
            use({"x": X})


def test_an_engine_that_is_none() -> None:
    library = fake_maker().library
    with refused("QD-BACKEND-ENGINE-NOT-LOADED"):
        load_engine(library, b"", FakeCuda())


@pytest.mark.skipif(not isinstance(find_device(), str), reason="this machine has a GPU")
def test_without_a_gpu_the_next_step_is_told() -> None:
    with pytest.raises(BackendError) as caught:
        open_cuda()
    assert "backend='simulation'" in caught.value.hint
