"""Padding is found where an input says so and the outputs prove it, and is left out of a walk."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.backends.simulation import SimulationBackend
from qdebug.decide.remedies.padding import used_positions, without_padding
from qdebug.network.graph import Graph

WORDS, CHANNELS, LENGTH = 20, 6, 8


def encoder(masked: bool) -> Graph:
    """Looks words up, and sums a product over positions: over all, or over those that the mask
    names."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(WORDS, CHANNELS)).astype(np.float32)
    weight = rng.normal(size=(CHANNELS, CHANNELS)).astype(np.float32)
    make = helper.make_node
    nodes = [
        make("Gather", ["table", "words"], ["looked_up"], "lookup"),
        make("MatMul", ["looked_up", "weight"], ["product"], "product"),
        make("Cast", ["mask"], ["kept"], "cast", to=TensorProto.FLOAT),
        make("Unsqueeze", ["kept", "last"], ["wide"], "unsqueeze"),
        make("Mul", ["product", "wide"], ["chosen"], "choose"),
        make("ReduceSum", ["chosen" if masked else "product", "middle"], ["y"], "sum"),
    ]
    values = {"table": table, "weight": weight, "last": np.array([2]), "middle": np.array([1])}
    ints = [
        helper.make_tensor_value_info(n, TensorProto.INT64, [2, LENGTH]) for n in ("words", "mask")
    ]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    constants = [numpy_helper.from_array(v, n) for n, v in values.items()]
    graph = helper.make_graph(nodes, "encoder", ints, [out], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return Graph(onnx.shape_inference.infer_shapes(model))


def feeds(lengths: tuple[int, ...] = (3, 5)) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    mask = np.arange(LENGTH) < np.array(lengths)[:, None]
    return {"words": rng.integers(1, WORDS, (2, LENGTH)), "mask": mask.astype(np.int64)}


def test_positions_that_the_outputs_ignore_are_padding() -> None:
    used = used_positions(SimulationBackend(1), encoder(True), [feeds(), feeds((8, 1))])
    assert used is not None and [mask.sum() for mask in used] == [8, 9]


def test_a_mask_that_the_outputs_do_not_heed_is_not_believed() -> None:
    assert used_positions(SimulationBackend(1), encoder(False), [feeds()]) is None


@pytest.mark.parametrize("lengths", [(8, 8), (0, 3)])
def test_without_padding_or_without_anything_else_there_is_none(lengths: tuple[int, int]) -> None:
    assert used_positions(SimulationBackend(1), encoder(True), [feeds(lengths)]) is None


def test_rows_are_left_out_where_their_shape_is_known() -> None:
    mask = feeds()["mask"].astype(bool)
    values = np.arange(2 * LENGTH * 3, dtype=np.float32).reshape(2, LENGTH, 3)
    (rows,) = without_padding([values], [mask])
    assert np.array_equal(rows, values[mask])
    (flat,) = without_padding([values.reshape(-1, 3)], [mask])
    assert np.array_equal(flat, rows)
    other = np.zeros((3, LENGTH, 3), np.float32)
    assert without_padding([other], [mask])[0] is other
    assert without_padding([values], None)[0] is values
