"""What `compare` says of how an engine was observed: real builds, executed by a fake."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_execution import execute_with_fake

from qdebug.backends.tensorrt.execute.device import find_device
from qdebug.store.reader import RunReader
from qdebug.testing.tensorrt import fake_build

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None or not isinstance(find_device(), str),
    reason="needs TensorRT for RTX, and no GPU",
)
FLAGS = ["compare", "net.onnx", "--inputs", "data.npz", "--backend", "tensorrt-rtx",
         "--compute-capability", "8.9", "--capture", "debug"]  # fmt: skip


def observing(monkeypatch: pytest.MonkeyPatch, *, unfused: bool) -> None:
    """Engines that report no marked tensor, and those that fusion leaves if `unfused`."""

    def build(library: Any, proto: Any, settings: Any, **rest: Any) -> Any:
        seen = replace(settings, unfused_debug_tensors=settings.unfused_debug_tensors and unfused)
        return fake_build(library, proto, seen, **{**rest, "debug": ()})

    execute_with_fake(monkeypatch, build)


def test_a_way_that_shows_nothing_is_said_and_left(
    desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    observing(monkeypatch, unfused=True)
    done = desk.run(*FLAGS)
    assert done.code == 0, done.err
    assert "unfused" in done.out and "debug" in done.out
    execution = desk.run(*FLAGS, "--json", "-").json["engine"]["execution"]
    assert execution["capture"] == "unfused"
    assert [c["way"] for c in execution["checks"]] == ["debug", "unfused"]
    assert execution["checks"][0]["hides"] and execution["checks"][1]["hides"] is None


def test_where_no_way_shows_anything_the_outputs_are_what_is_known(
    desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    observing(monkeypatch, unfused=False)
    done = desk.run(*FLAGS, "--json", "-")
    assert done.code == 0, done.err
    execution = done.json["engine"]["execution"]
    assert [t["tensor"] for t in execution["tensors"]] == ["out"]
    assert len(execution["skipped"]) > 3


@pytest.mark.parametrize("keep", ["all", "worst:2"])
def test_a_run_file_keeps_what_the_engine_gave(
    desk: Any, monkeypatch: pytest.MonkeyPatch, keep: str
) -> None:
    observing(monkeypatch, unfused=True)
    flags = [*FLAGS[:-1], "outputs", "--keep", keep, "--batch-size", "4", "-o", "run.h5"]
    assert desk.run(*flags).code == 0
    with RunReader("run.h5") as run:
        assert set(run.tensors("candidate")) <= set(run.tensors("engine"))
        assert len(run.samples) == (2 if keep == "worst:2" else 12)
        for sample in run.samples:
            for tensor in ("r1", "out"):
                simulated, engine = (
                    run.read(role, tensor, sample) for role in ("candidate", "engine")
                )
                np.testing.assert_allclose(engine, simulated, rtol=1e-3, atol=1e-3)
                assert not np.array_equal(engine, run.read("reference", tensor, sample))
