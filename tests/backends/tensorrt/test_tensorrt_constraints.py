"""TensorRT 10's implicit way, as far as it goes without TensorRT 10: what is asked for, and that
NVIDIA's parser (that of RTX) names layers and tensors as it is assumed to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from qdebug.backends.simulation import SimulationBackend
from qdebug.backends.tensorrt.build.build import BuildJob, build_engine, engine_key, tensors_of
from qdebug.backends.tensorrt.build.settings import BuildSettings
from qdebug.backends.tensorrt.library import Library
from qdebug.plan.constraints import (
    constrained_graph,
    constraints_in,
    constraints_of,
    lost_in_constraints,
)
from qdebug.plan.parsed_network import nodes_of, ranges_in
from qdebug.plan.plan import BoundPlan, Granularity, TensorRange
from qdebug.types import Precision

Plan = Callable[[str, str], BoundPlan]
DATA = Path(__file__).parents[3] / "calib_data"
BLOCK = "/blocks/blocks.1/"


def test_what_a_plan_asks_for(bound_plan: Plan) -> None:
    found = constraints_of(bound_plan("digits_cnn", "mixed"))
    assert found.precisions[BLOCK + "pointwise/conv/Conv"] is Precision.INT8
    assert found.precisions[BLOCK + "Add"] is Precision.FP16
    # Read by an INT8 layer only: may be passed on in INT8.
    assert BLOCK + "depthwise/act/Clip_output_0" not in found.stored
    assert found.stored[BLOCK + "pointwise/act/Clip_output_0"] is Precision.FP16
    assert found.ranges["input"] == pytest.approx(4.0)
    assert lost_in_constraints(bound_plan("digits_cnn", "mixed")) == ()


def test_outputs_of_the_model_keep_their_type(bound_plan: Plan) -> None:
    for kind in ("int8", "fp16", "mixed"):
        bound = bound_plan("digits_cnn", kind)
        (output,) = bound.layers.graph.outputs
        assert constraints_of(bound).stored[output] is Precision.FP32


def test_what_cannot_be_said_is_noted(bound_plan: Plan) -> None:
    bound = bound_plan("digits_cnn", "int8")
    weight = next(layer.weight for layer in bound.layers if layer.weight)
    own = replace(bound.plan, tensors={**bound.plan.tensors, weight: TensorRange(1.0)})
    (note,) = lost_in_constraints(replace(bound, plan=own))
    assert weight in note and "not used" in note
    whole = replace(bound.plan, weights=Granularity.PER_TENSOR)
    assert "per output channel" in lost_in_constraints(replace(bound, plan=whole))[0]


def test_ranges_are_needed(bound_plan: Plan) -> None:
    bound = bound_plan("digits_cnn", "int8")
    with refused("QD-PLAN-RANGE-MISSING"):
        constraints_of(replace(bound, plan=replace(bound.plan, tensors={})))
    several = {**bound.plan.tensors, "input": TensorRange((1.0, 2.0))}
    with refused("QD-PLAN-AMAX-COUNT", "'input'", " 2"):
        constraints_of(replace(bound, plan=replace(bound.plan, tensors=several)))


@pytest.mark.parametrize("by_cache", [False, True])
def test_a_model_carries_its_constraints(bound_plan: Plan, by_cache: bool) -> None:
    bound = bound_plan("digits_cnn", "mixed")
    graph = constrained_graph(bound, by_cache=by_cache)
    assert constraints_in(graph.proto) == constraints_of(bound, by_cache=by_cache)
    assert constraints_in(bound.layers.graph.proto) is None  # it was not changed
    assert graph.nodes == bound.layers.graph.nodes


def test_whatever_is_asked_counts_in_the_key_of_an_engine(
    rtx: Library, bound_plan: Plan, ada: BuildSettings
) -> None:
    bound = bound_plan("digits_cnn", "mixed")
    plan = bound.plan
    wider = {**plan.tensors, "input": TensorRange(5.0)}
    asked = [
        constrained_graph(bound),
        constrained_graph(bound, by_cache=True),
        constrained_graph(replace(bound, plan=replace(plan, fallback_precision=Precision.FP32))),
        constrained_graph(replace(bound, plan=replace(plan, tensors=wider))),
    ]
    keys = [engine_key(rtx, BuildJob(graph.proto, ada)) for graph in asked]
    assert len(set(keys)) == 4
    assert engine_key(rtx, BuildJob(constrained_graph(bound).proto, ada)) == keys[0]


@pytest.mark.parametrize("net", ["digits_cnn", "digits_encoder"])
def test_the_parser_keeps_every_name(rtx: Library, bound_plan: Plan, net: str) -> None:
    """Each node of the plan has layers, and each tensor that is to be set exists, whatever layers
    TensorRT makes of a node."""
    model = constrained_graph(bound_plan(net, "int8")).proto
    asked = constraints_of(bound_plan(net, "int8"))
    trt = rtx.module
    builder = trt.Builder(rtx.logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, rtx.logger)
    assert parser.parse(model.SerializeToString())
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    assert set(asked.precisions) <= {node for layer in layers for node in nodes_of(layer)}
    tensors = {
        *tensors_of(network),
        *(network.get_input(i).name for i in range(network.num_inputs)),
    }
    assert set(asked.ranges) | set(asked.stored) <= tensors


@pytest.mark.parametrize("net", ["digits_cnn", "digits_encoder"])
def test_all_that_an_int8_layer_reads_and_writes_has_a_range(
    rtx: Library, bound_plan: Plan, net: str
) -> None:
    """TensorRT takes no INT8 kernel without; names are those of NVIDIA's parser, its own too."""
    bound = bound_plan(net, "int8")
    asked, trt = constraints_of(bound), rtx.module
    builder = trt.Builder(rtx.logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, rtx.logger)
    assert parser.parse(constrained_graph(bound).proto.SerializeToString())
    ranges = ranges_in(network, trt, asked)
    products = ("CONVOLUTION", "MATRIX_MULTIPLY")
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    layers = [layer for layer in layers if layer.type.name in products]
    assert {nodes_of(x)[0] for x in layers} == {x.name for x in bound.layers_in(Precision.INT8)}
    for layer in layers:
        ends = [layer.get_input(i) for i in range(layer.num_inputs)]
        names = {t.name for t in [*ends, layer.get_output(0)] if t is not None}
        assert names <= set(ranges)
        own = [n for n in names if n.startswith("ONNXTRT_Broadcast") or n.endswith("weight_output")]
        assert all(ranges[n] == asked.weights[nodes_of(layer)[0]] for n in own)
    assert asked.ranges.items() <= ranges.items()


@pytest.mark.parametrize("net", ["digits_cnn", "digits_encoder"])
def test_a_range_of_what_stays_in_float_is_not_exceeded(bound_plan: Plan, net: str) -> None:
    bound = bound_plan(net, "int8")
    graph = bound.layers.graph
    images = np.load(DATA / "digits_calib.npz")["input"][:32]
    session = SimulationBackend().open(graph.proto, graph.activations())
    found = session.run({"input": images}) | {"input": images}
    largest = {t: float(np.abs(a).max()) for t, a in found.items() if a.dtype == np.float32}
    ranges = {t: TensorRange(largest[t]) for t in bound.needed_ranges()}
    asked = constraints_of(replace(bound, plan=replace(bound.plan, tensors=ranges)))
    checked = 0
    for layer in bound.layers_in(Precision.INT8):
        if {graph.by_name[n].op_type for n in layer.nodes[1:]} == {"Clip"}:
            continue  # it may be cut off as its output is
        for tensor in (t for n in layer.nodes for t in graph.by_name[n].outputs):
            assert largest[tensor] <= asked.others[layer.name] < 1e6
            checked += 1
    assert checked > 0


def test_what_follows_a_product_decides_what_may_be_int8(bound_plan: Plan) -> None:
    asked = constraints_of(bound_plan("digits_cnn", "int8"))
    # ReLU6 only cuts off: before it, too, INT8 will do.
    assert {"/stem/conv/Conv_output_0", "/stem/act/Clip_output_0"} <= set(asked.free)
    assert asked.others["/stem/conv/Conv"] == asked.ranges["/stem/act/Clip_output_0"]
    encoder = constraints_of(bound_plan("digits_encoder", "int8"))
    assert not [t for t in encoder.free if t.endswith("MatMul_output_0") and "query" in t]


def test_tensorrt_for_rtx_has_no_such_way(
    rtx: Library, bound_plan: Plan, ada: BuildSettings
) -> None:
    asked = constrained_graph(bound_plan("digits_cnn", "int8"))
    with refused("QD-USAGE-IMPLICIT"):
        build_engine(rtx, asked.proto, ada)
