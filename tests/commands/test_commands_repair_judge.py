"""What a repair judges networks by: runs over samples."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from scipy.stats import spearmanr

import qdebug.decide.repair.judge as judge_module
from qdebug.analyse.gate import read_metric
from qdebug.backends.options import DEFAULT_SESSIONS
from qdebug.backends.sizing import parallelism
from qdebug.decide.remedies.result import Reason
from qdebug.decide.repair.judge import Judge
from qdebug.execute.context import simulation_context
from qdebug.inmemory import InMemory
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.metrics.uncertainty import group_numbers
from qdebug.network.graph import Graph
from qdebug.network.samples import open_samples
from qdebug.network.samples.subset import finely, whole
from qdebug.types import Fp16Kernels, ignore_progress

SAMPLES = 12


def network(factor: float) -> onnx.ModelProto:
    """y = factor · x: its error is that of the factor, whatever the sample."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "f"], ["y"], "mul")],
        "g",
        [value("x", TensorProto.FLOAT, ["N", 4])],
        [value("y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(np.array(factor, np.float32), "f")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    return judge_of(tmp_path, None)


def judge_of(tmp_path: Path, metric: TaskMetric | None) -> Judge:
    x = np.random.default_rng(0).normal(size=(SAMPLES, 4)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    graph = Graph(network(1.0))
    subset = whole(finely(open_samples(str(tmp_path / "x.npz"), graph.inputs), SAMPLES))
    context = simulation_context(
        parallelism(), ignore_progress, DEFAULT_SESSIONS, None, Fp16Kernels.EXACT
    )
    return Judge(context, graph, subset, metric)


def test_a_choice_that_all_groups_make_is_its_own_cross_validation(judge: Judge) -> None:
    networks = [network(1.1), network(1.01)]
    found = [judge(one) for one in networks]
    assert judge.answer(found) == 1
    assert judge.cross_validated(networks, found) is found[1]


def test_each_group_is_run_in_the_network_that_the_others_choose(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks = [network(1.1), network(1.01)]
    found = [judge(one) for one in networks]
    choices = [0, 1] * (SAMPLES // 2)
    monkeypatch.setattr(judge_module, "choices_of", lambda *_: choices)
    mixed = judge.cross_validated(networks, found)
    assert mixed is not None
    group_of = group_numbers(SAMPLES, SAMPLES)
    expected = [found[choices[group_of[i]]].noise_db[i] for i in range(SAMPLES)]
    np.testing.assert_array_equal(mixed.noise_db, expected)
    assert found[0].sqnr_db < mixed.sqnr_db < found[1].sqnr_db


def test_where_a_metric_decides_the_rest_is_of_the_chosen_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = judge_of(tmp_path, read_metric("agreement", None))
    assert judge.reference_interval(math.inf) is None  # FP32 agrees with itself
    networks = [network(-1.0), network(1.01)]
    found = [judge(one) for one in networks]
    assert [one.metric for one in found] == [0.0, 1.0]
    monkeypatch.setattr(judge_module, "choices_of", lambda *_: [0, 1, 1] * (SAMPLES // 3))
    mixed = judge.cross_validated(networks, found)
    assert mixed is not None and mixed.metric == pytest.approx(2 / 3)
    assert mixed.sqnr_db == found[1].sqnr_db


def test_scores_of_two_networks_are_not_ranked_with_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the scores rank as well: by groups, either network is worth what the other is, where
    ranking all together says less."""

    def order(outputs: dict[str, np.ndarray], labels: Any, reference: Any) -> float:
        return float(spearmanr(outputs["y"].ravel(), reference["y"].ravel()).statistic)

    judge = judge_of(tmp_path, read_metric(InMemory("order", order), None))
    networks = [network(0.2), network(5.0)]
    found = [judge(one) for one in networks]
    assert [one.metric for one in found] == [1.0, 1.0]
    monkeypatch.setattr(judge_module, "choices_of", lambda *_: [0, 1, 1] * (SAMPLES // 3))
    mixed = judge.cross_validated(networks, found)
    assert mixed is not None and mixed.metric == pytest.approx(1.0)
    assert mixed.sqnr_db == found[judge.answer(found)].sqnr_db


def test_a_metric_better_than_fp32s_is_no_better(tmp_path: Path) -> None:
    """By chance a quantized network reads more lines right than FP32 does: to lose these is no
    loss, and the noise decides."""

    def size(outputs: dict[str, np.ndarray]) -> float:
        return float(np.abs(outputs["y"]).mean())

    judge = judge_of(tmp_path, read_metric(InMemory("size", size), None))
    lucky, quiet, worse = (judge(network(x)) for x in (1.1, 1.001, 0.9))
    assert lucky.metric and quiet.metric and lucky.metric > quiet.metric > judge.reference_metric
    assert judge.verdict(lucky, quiet, lucky, lucky).reason is Reason.LESS_NOISE
    assert not judge.verdict(quiet, lucky, quiet, quiet).better
    assert judge.verdict(worse, lucky, worse, worse).reason is Reason.METRIC
    assert judge.answer([lucky, worse, quiet]) == 2
