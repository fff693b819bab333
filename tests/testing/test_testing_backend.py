"""The fake: canned answers, failures, and counts for tests that must not need a runtime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import parser

from qdebug.errors import BackendError, ModelError
from qdebug.testing.backend import FakeBackend, reference_compute
from qdebug.types import Feeds, Tensors

MODEL = parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 13]>
    g (float[2] x) => (float[2] y) { r = Relu(x)  y = Neg(r) }
""")
X = np.array([1, -1], np.float32)


def test_it_counts() -> None:
    backend = FakeBackend()
    one, two = backend.open(MODEL, ["r"]), backend.open(MODEL, [])
    for session in (one, two, one):
        session.run({"x": X})
    assert backend.captures == [("r",), ()]
    assert backend.runs == 3


def test_canned_arrays() -> None:
    canned = {"y": np.zeros(2, np.float32), "r": np.ones(2, np.float32)}
    backend = FakeBackend(lambda _: lambda feeds, names: {n: canned[n] for n in names})
    assert backend.open(MODEL, ["r"]).run({}) == canned


def test_an_error_on_top_of_the_evaluator() -> None:
    def noisy(proto: onnx.ModelProto):
        exact = reference_compute(proto)

        def compute(feeds: Feeds, names: Sequence[str]) -> Tensors:
            return {n: a + np.float32(0.5) for n, a in exact(feeds, names).items()}

        return compute

    found = FakeBackend(noisy).open(MODEL, []).run({"x": X})
    np.testing.assert_array_equal(found["y"], [-0.5, 0.5])


def test_failures_are_mapped() -> None:
    def refuse(_: onnx.ModelProto):
        raise KeyError("nope")

    def explode(feeds: Feeds, names: Sequence[str]) -> Tensors:
        raise MemoryError("full")

    with pytest.raises(ModelError, match="nope"):
        FakeBackend(refuse).open(MODEL, [])
    with pytest.raises(BackendError, match="full"):
        FakeBackend(lambda _: explode).open(MODEL, []).run({"x": X})
