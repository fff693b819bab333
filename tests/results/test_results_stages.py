"""The steps from a framework to an engine, and whether each holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import qdebug
from qdebug.display.blocks import Line
from qdebug.display.compare import view
from qdebug.errors import MetricError
from qdebug.result import FailedStage
from qdebug.results.compare import CompareResult
from qdebug.results.framework import FrameworkResult, FrameworkTensor
from qdebug.results.stage_report import StageState

MODEL = "calib_data/digits_cnn.onnx"
DATA = {name: array[:16] for name, array in np.load("calib_data/digits_holdout.npz").items()}


@pytest.fixture(scope="module")
def compared() -> Any:
    found: dict[tuple[str, ...], CompareResult] = {}

    def of(*conditions: str) -> CompareResult:
        if conditions not in found:
            found[conditions] = qdebug.compare(
                MODEL, inputs=DATA, metric="top1", effect="none", fail_on=conditions
            )
        return found[conditions]

    return of


def states(result: CompareResult) -> list[str]:
    return [str(stage.state) for stage in result.stages]


def test_what_was_not_run_says_what_to_add(compared: Any) -> None:
    stages = compared().stages
    assert [s.name for s in stages] == ["framework", "quantization", "kernels", "task"]
    assert states(compared()) == ["not-run", "measured", "not-run", "measured"]
    assert [s.state.words for s in stages] == ["not run", "measured", "not run", "measured"]
    asked = ["framework='DATA'", "", "backend='openvino'", ""]
    assert [s.next_step for s in stages] == asked
    assert stages[1].sqnr_db == pytest.approx(compared().outputs[0].metrics.sqnr_db)
    assert "1.0000 in FP32" in stages[3].told
    bare = replace(compared(), metric=None).stages[3]
    assert (bare.state, bare.next_step) == (StageState.NOT_RUN, "metric='NAME'")
    assert compared().to_dict()["stages"][0]["state"] == "not-run"


def test_an_engine_that_failed_is_said_first(compared: Any) -> None:
    failure = FailedStage("engine", "QD-BACKEND", "No valid engine configs for Matmul_", "Update.")
    result = replace(compared(), failed=(failure,))
    kernels = result.stages[2]
    assert (kernels.state, kernels.next_step) == (StageState.NOT_RUN, "Update.")
    assert kernels.told == "the engine failed: No valid engine configs for Matmul_"
    opening = view(result)[0]
    assert isinstance(opening, Line)
    assert opening.text.startswith("The engine could not be run on simulation: ")


def test_a_metric_that_cannot_be_computed_was_given(compared: Any) -> None:
    failure = FailedStage(
        "metric", "QD-METRIC-NO-BOXES", "these samples have no boxes", "Give some."
    )
    task = replace(compared(), metric=None, failed=(failure,)).stages[3]
    assert (task.state, task.told) == (StageState.NOT_RUN, "these samples have no boxes")
    assert task.next_step == "Give some."


def test_conditions_decide(compared: Any) -> None:
    low = compared("stage.quantization.sqnr_db>=5", "metric>=0.5")
    assert low.passed and states(low) == ["not-run", "passed", "not-run", "passed"]
    high = compared("output.sqnr_db>=99", "stage.framework.sqnr_db>=60")
    assert not high.passed and states(high) == ["not-run", "failed", "not-run", "measured"]
    missing = high.conditions[1]
    assert missing.value is None and missing.reason == "its outputs are not given"
    assert missing.figure == "stage.framework.sqnr_db"


@pytest.mark.parametrize(("sqnr_db", "state"), [(140.0, "passed"), (20.0, "failed")])
def test_an_export(compared: Any, sqnr_db: float, state: str) -> None:
    tensor = FrameworkTensor("y", "logits", "name", sqnr_db, 0.1, 1.0, 0, agrees=sqnr_db >= 90)
    framework = FrameworkResult("torch.npz", 16, 90.0, (tensor,), (), "", "", (), score=0.5)
    result = replace(compared(), framework=framework)
    assert states(result)[0] == state and result.stages[0].sqnr_db == sqnr_db
    assert "0.5000 in the framework" in result.stages[3].told
    gated = replace(result, conditions=compared("output.sqnr_db>=1").conditions)
    assert states(gated)[0] == state  # conditions about another step say nothing of this one


def test_a_step_that_there_is_not() -> None:
    with pytest.raises(MetricError) as caught:
        qdebug.compare(MODEL, inputs=DATA, fail_on="stage.export.sqnr_db>=3")
    assert caught.value.code == "QD-METRIC-CONDITION-NAME"


def test_an_engine() -> None:
    """Kernels of ONNX Runtime, which compute the Q/DQ model itself."""
    result = qdebug.compare(
        MODEL,
        inputs=DATA,
        effect="none",
        backend="onnxruntime",
        fail_on=("stage.kernels.sqnr_db>=1", "output.sqnr_db>=1", "part.sqnr_db>=1"),
    )
    assert result.engine is not None and result.engine.execution is not None
    kernels = result.stages[2]
    assert kernels.state is StageState.PASSED
    worst = min(o.kernel_db for o in result.engine.execution.outputs)
    assert kernels.sqnr_db == worst == result.conditions[0].value
    quantized = min(o.quantization_db for o in result.engine.execution.outputs)
    assert result.stages[1].sqnr_db == pytest.approx(quantized)
    assert result.stages[1].state is StageState.MEASURED  # not by the engine's


def test_an_engine_changes_nothing_in_the_step_before_it() -> None:
    """Of a detector, whose boxes and scores have unlike errors."""
    scenes = "calib_data/scenes"
    settings = {"inputs": f"{scenes}/test", "calib_data": f"{scenes}/calib", "effect": "none"}
    model = "calib_data/digits_detector.onnx"
    simulated = qdebug.compare(model, samples=4, **settings)
    executed = qdebug.compare(model, samples=4, backend="onnxruntime", **settings)
    assert min(simulated.outputs[0].part_sqnrs_db) < simulated.outputs[0].metrics.sqnr_db - 1
    assert executed.stages[1].sqnr_db == pytest.approx(simulated.stages[1].sqnr_db)


@pytest.mark.parametrize(("precision", "said"), [("bf16", "gave NaN"), ("w8", "accuracy_level 4")])
def test_what_the_simulation_of_a_format_leaves_out(precision: str, said: str) -> None:
    few = {"input": DATA["input"][:2]}
    result = qdebug.compare(MODEL, inputs=few, precision=precision, effect="none")
    assert sum(said in note for note in result.notes) == 1
