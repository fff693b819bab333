"""Tensors as outputs of several engines, on a fake GPU with little memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qdebug.backends.tensorrt.backend import TensorRTBackend
from qdebug.backends.tensorrt.build.settings import BuildSettings
from qdebug.testing.cuda import FakeCuda
from qdebug.testing.tensorrt import fake_maker

INNER = [f"t{k}" for k in range(8)]
KB = 1024
"""Of each tensor."""


def chain() -> onnx.ModelProto:
    """x → Neg t0 → Neg t1 … → Neg y."""
    names = ["x", *INNER, "y"]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Neg", [a], [b], b) for a, b in pairwise(names)],
        "g",
        [value("x", TensorProto.FLOAT, [KB // 4])],
        [value("y", TensorProto.FLOAT, [KB // 4])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize("limit", [4, 6, 10, 12, 24, 40])
@pytest.mark.parametrize("group", [None, 8 * KB, 2 * KB])
def test_engines_take_turns_where_memory_is_short(limit: int, group: int | None) -> None:
    """x, y and two more tensors fit: all are seen, in as many engines as it takes."""
    cuda = FakeCuda(limit_bytes=limit * KB)
    backend = TensorRTBackend(fake_maker(BuildSettings(), cuda))
    session = backend.open(chain(), INNER, group_bytes=group)
    feeds = [{"x": np.full(KB // 4, k, np.float32)} for k in range(6)]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(session.run, feeds))
    assert session.skipped == ()
    for k, found in enumerate(results):
        assert {n: a[0] for n, a in found.items()} == {
            **{n: -k if i % 2 == 0 else k for i, n in enumerate(INNER)},
            "y": -k,
        }
    session.close()
    assert cuda.used_bytes == 0
