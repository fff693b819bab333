"""End-to-end metrics, the user's own among them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from qdebug.metrics.tasks.base import join_outputs
from qdebug.metrics.tasks.load import check_labels, load_metric, metric_in_memory
from qdebug.metrics.tasks.worst_group import of_worst_group

FUNCTION = "QD-METRIC-FUNCTION"
SCORES = {"out": np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]], np.float32)}
OTHER = {"out": np.array([[0.1, 0.9], [0.2, 0.8], [0.3, 0.7]], np.float32)}
LABELS = {"labels": np.array([1, 0, 0])}


def _file(folder: Path, code: str) -> str:
    path = folder / "my_metric.py"
    path.write_text(code, encoding="utf-8")
    return f"{path}:score"


def test_top1() -> None:
    metric = load_metric("top1")
    assert metric.needs_labels
    assert metric(SCORES, LABELS, OTHER) == pytest.approx(2 / 3)
    assert metric(SCORES, {"whatever": np.array([[1], [0], [1]])}, {}) == 1
    broken = {"out": np.array([[np.nan, 0.9], [np.nan, np.nan], [np.inf, 0]])}
    assert metric(broken, LABELS, {}) == pytest.approx(2 / 3)


def test_agreement() -> None:
    metric = load_metric("agreement")
    assert not metric.needs_labels
    assert metric(SCORES, {}, OTHER) == pytest.approx(2 / 3)
    assert metric(SCORES, {}, SCORES) == 1


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ({}, ["'labels'"]),
        ({"a": np.zeros(3), "b": np.zeros(3)}, ["a, b"]),
        ({"labels": np.array([1])}, ["3 samples", "(1,)"]),
        ({"labels": np.eye(3)}, ["3 samples", "(3, 3)"]),
    ],
)
def test_labels_that_do_not_fit(labels: Any, says: list[str]) -> None:
    with refused("QD-METRIC-LABELS", *says):
        load_metric("top1")(SCORES, labels, {})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("top1", "'agreement'"),
        ("miou", "'miou-to-reference'"),
        ("recall@1", "'cosine'"),
        ("mae", "without a metric"),
    ],
)
def test_without_labels_what_needs_none_is_named(name: str, says: str) -> None:
    with refused("QD-METRIC-LABELS", "there are none") as caught:
        check_labels(load_metric(name), {}, "samples.npz")
    assert says.lower() in caught.value.hint.lower()


def test_labels_are_found_by_name_among_others() -> None:
    labels = {"ids": np.arange(3), "y": np.array([1, 0, 0])}
    assert load_metric("top1")(SCORES, labels, {}) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("signature", "body", "value"),
    [
        ("outputs", "outputs['out'].shape[0]", 3),
        ("labels", "labels['labels'].sum()", 1),
        ("reference, outputs", "(reference['out'] != outputs['out']).sum()", 2),
        ("outputs, labels, reference", "len(outputs) + len(labels) + len(reference)", 3),
        ("", "7", 7),
        ("outputs, k=5", "k", 5),
        ("**given", "sorted(given) == ['labels', 'outputs', 'reference']", 1),
        ("outputs, **given", "sorted(given) == ['labels', 'reference']", 1),
        ("outputs", "np.array([0.5])[0] > 0", 1),
    ],
)
def test_a_functions_parameters_decide_what_it_gets(
    tmp_path: Path, signature: str, body: str, value: float
) -> None:
    spec = _file(tmp_path, f"import numpy as np\ndef score({signature}):\n    return {body}\n")
    assert load_metric(spec)(SCORES, LABELS, OTHER) == value


def test_a_function_of_a_module() -> None:
    accuracy = load_metric("numpy:array_equal")
    assert accuracy.needs_labels
    assert accuracy(SCORES, {"labels": np.array([1, 0, 1])}, {}) == 1
    raw = load_metric("numpy:vdot")
    assert raw(SCORES, {"labels": SCORES["out"]}, {}) == pytest.approx(2.08)


def test_a_metric_that_raises_shows_its_own_line(tmp_path: Path) -> None:
    code = (
        "import numpy as np\n\ndef score(outputs):\n    return np.reshape(outputs['out'], (7, 7))\n"
    )
    metric = load_metric(_file(tmp_path, code))
    with refused("QD-METRIC-RAISED", "ValueError") as caught:
        metric(SCORES, {}, {})
    hint = caught.value.hint
    assert hint.startswith("In my_metric.py, line 4: return np.reshape(outputs['out'], (7, 7))")
    assert f"outputs = {{'out': {list(SCORES['out'].shape)}}}" in hint


def test_a_metric_that_expected_dicts_is_told_how_to_get_them(tmp_path: Path) -> None:
    metric = load_metric(_file(tmp_path, "def score(out, lab):\n    return out['out']\n"))
    with refused("QD-METRIC-RAISED", "line 2: return out['out']", "parameters outputs and labels"):
        metric(SCORES, LABELS, {})


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _file(tmp_path, "def score():\n    return [][1]\n")
    monkeypatch.chdir(tmp_path)
    with refused("QD-METRIC-RAISED", "line 2: return [][1]"):
        load_metric("my_metric.py:score")({}, {}, {})


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        ("float('nan')", " nan"),
        ("float('inf')", " inf"),
        ("None", "NoneType"),
        ("'high'", " str"),
        ("outputs['out']", "ndarray"),
    ],
)
def test_no_finite_number(tmp_path: Path, returned: str, found: str) -> None:
    metric = load_metric(_file(tmp_path, f"def score(outputs):\n    return {returned}\n"))
    with refused("QD-METRIC-VALUE", found):
        metric(SCORES, {}, {})


def test_a_file_with_a_dataclass_and_a_neighbour(tmp_path: Path) -> None:
    (tmp_path / "my_metric_helper.py").write_text("VALUE = 4\n")
    code = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "from typing import ClassVar\nfrom my_metric_helper import VALUE\n"
        "@dataclass\nclass Weights:\n    a: int = VALUE\n    b: ClassVar[int] = 2\n"
        "def score():\n    return Weights().a\n"
    )
    assert load_metric(_file(tmp_path, code))({}, {}, {}) == 4


@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        ("x = 1\n", FUNCTION, ["'score'"]),
        ("score = 3\n", FUNCTION, ["'score'"]),
        ("def score(preds): return 1\n", "QD-METRIC-PARAMETERS", ["'preds'", "outputs, labels"]),
        ("\nraise RuntimeError('no data')\n", FUNCTION, ["RuntimeError", "line 2: raise"]),
        ("\nimport not_there_at_all\n", FUNCTION, ["'not_there_at_all'", "line 2: import"]),
        ("\n\ndef score(:\n", FUNCTION, ["SyntaxError", "my_metric.py, line 3: def score(:"]),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, code: str, error: str, says: list[str]) -> None:
    with refused(error, *says):
        load_metric(_file(tmp_path, code))


@pytest.mark.parametrize(
    ("spec", "code", "named"),
    [
        ("top7", "QD-METRIC-UNKNOWN", "'top7'"),
        (":score", "QD-METRIC-UNKNOWN", "':score'"),
        ("file.py:", "QD-METRIC-UNKNOWN", "'file.py:'"),
        ("none/file.py:score", FUNCTION, "none/file.py"),
        ("no_such_module_x:score", FUNCTION, "'no_such_module_x'"),
        (".relative:score", FUNCTION, "'.relative'"),
        ("numpy:no_such_function", FUNCTION, "'no_such_function'"),
    ],
)
def test_unknown_metrics(spec: str, code: str, named: str) -> None:
    with refused(code, named):
        load_metric(spec)


@pytest.mark.parametrize("counts", [(1, 1, 1), (2, 2, 1)])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_outputs_are_joined_along_their_samples(counts: tuple[int, ...], axis: int) -> None:
    """A recurrent network gives [time, samples, classes]."""
    rows = np.random.default_rng(0).random((sum(counts), 7, 9), np.float32)
    ends = np.cumsum(counts)
    parts = [np.moveaxis(rows[e - n : e], 0, axis) for e, n in zip(ends, counts, strict=True)]
    np.testing.assert_array_equal(join_outputs({"y": parts}, counts)["y"], rows)


def test_an_output_without_an_axis_of_samples_gets_one() -> None:
    boxes = np.random.default_rng(0).random((3, 100, 6), np.float32)
    np.testing.assert_array_equal(join_outputs({"y": list(boxes)}, (1, 1, 1))["y"], boxes)


ATTRIBUTES = """
import numpy as np
def score(outputs, labels):
    return float(np.mean(outputs["out"]))
def soft(outputs, reference):
    return np.abs(outputs["out"] - reference["out"]).max(1)
"""


def test_attributes_of_a_function_say_the_rest(tmp_path: Path) -> None:
    plain = load_metric(_file(tmp_path, ATTRIBUTES))
    assert plain.higher_is_better and not plain.is_declared and plain.loss is None
    code = f"{ATTRIBUTES}score.higher_is_better = False\nscore.loss = soft\nscore.per_sample = soft"
    metric = load_metric(_file(tmp_path, code))
    assert metric.is_declared and not metric.higher_is_better and metric.per_sample is not None
    assert metric.loss is not None
    losses = metric.loss(SCORES, LABELS, OTHER)
    np.testing.assert_allclose(losses, [0, 0.6, 0], atol=1e-6)
    assert losses.dtype == np.float64


@pytest.mark.parametrize("returned", ["1.0", "[1, 2]", "[[1], [2], [3]]", "'a'", "[1, 2, np.nan]"])
def test_a_loss_that_is_not_one_number_per_sample(tmp_path: Path, returned: str) -> None:
    code = f"{ATTRIBUTES}score.loss = lambda outputs: {returned}"
    loss = load_metric(_file(tmp_path, code)).loss
    assert loss is not None
    with refused("QD-METRIC-VALUE", "per-sample loss", "3 samples"):
        loss(SCORES, LABELS, OTHER)


def test_a_loss_that_raises_is_named(tmp_path: Path) -> None:
    code = f"{ATTRIBUTES}score.loss = lambda outputs: outputs['missing']"
    loss = load_metric(_file(tmp_path, code)).loss
    assert loss is not None
    with refused("QD-METRIC-RAISED", "per-sample loss", "KeyError"):
        loss(SCORES, LABELS, OTHER)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("score.higher_is_better = 'no'", FUNCTION),
        ("score.loss = 1", FUNCTION),
        ("score.loss = lambda logits: logits", "QD-METRIC-PARAMETERS"),
    ],
)
def test_attributes_that_are_not_understood(tmp_path: Path, line: str, code: str) -> None:
    with refused(code, "score."):
        load_metric(_file(tmp_path, ATTRIBUTES + line))


def test_a_loss_in_memory_is_part_of_the_key() -> None:
    def made(unit: float) -> Any:
        def score(outputs: Any) -> float:
            return 0.0

        score.loss = lambda outputs: unit * outputs["out"][:, 0]  # type: ignore[attr-defined]
        return load_metric(metric_in_memory(score))

    assert made(1.0).key == made(1.0).key != made(2.0).key


@pytest.mark.parametrize(
    ("spec", "higher", "declared"),
    [
        ("sklearn_like:balanced_accuracy_score", True, True),
        ("sklearn_like:mean_squared_error", False, True),
        ("sklearn_like:hinge_loss", False, True),
        ("sklearn_like:kappa", True, False),
    ],
)
def test_names_of_a_module_declare_the_direction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, higher: bool, declared: bool
) -> None:
    name = spec.partition(":")[2]
    module = tmp_path / "sklearn_like.py"
    module.write_text(f"def {name}(y_true, y_pred):\n    return 0.0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sklearn_like", raising=False)
    metric = load_metric(spec)
    assert (metric.higher_is_better, metric.is_declared) == (higher, declared)


def test_outputs_of_unlike_shapes_are_scored_sample_by_sample() -> None:
    """As [1, …] each, with a loss and a score of the whole; boxes of one sample differ in number
    between both runs."""

    def count(outputs: Any, labels: Any, reference: Any) -> float:
        (found,), (true,) = outputs["y"], labels["labels"]
        assert outputs["z"].shape == (1, 3) and reference["y"].shape[0] == 1
        return float(len(found) / true)

    def lost(outputs: Any, labels: Any, reference: Any) -> Any:
        return np.array([len(reference["y"][0]) - len(outputs["y"][0])], float)

    count.loss, count.higher_is_better = lost, True  # type: ignore[attr-defined]
    metric = load_metric(metric_in_memory(count))
    pieces = [np.zeros((1, n, 2)) for n in (2, 3, 3, 6)]
    outputs = join_outputs({"y": pieces, "z": [np.zeros((1, 3))] * 4}, [1] * 4)
    true = [np.zeros((1, n, 2)) for n in (4, 4, 4, 5)]
    truth = join_outputs({"y": true, "z": [np.zeros((1, 3))] * 4}, [1] * 4)
    labels = {"labels": np.array([2, 2, 4, 4])}
    assert outputs["z"].shape == (4, 3) and outputs["y"].shape == (4,)
    scores = [1.0, 1.5, 0.75, 1.5]
    assert metric(outputs, labels, truth) == pytest.approx(np.mean(scores))
    judged = metric.judged(outputs, labels, truth, [np.array([0, 1]), np.array([3])])
    assert judged.per_sample is not None and judged.loss is not None
    assert judged.per_sample.tolist() == scores and judged.loss.tolist() == [2.0, 1.0, 1.0, -1.0]
    assert judged.left_out.tolist() == [1.25, 1.5]
    groups = {**labels, "group": np.array([0, 0, 1, 1])}
    worst = of_worst_group(metric, "group")
    before = metric(truth, labels, truth)
    assert worst(outputs, groups, truth) == pytest.approx(before + min(1.25 - 2, 1.125 - 1.125))


def test_samples_of_one_execution_whose_rows_are_not_known_are_refused() -> None:
    with refused("QD-METRIC-SHAPES", "'y'", "batch_size=1"):
        join_outputs({"y": [np.zeros((5, 2, 7)), np.zeros((6, 3, 7))]}, [4, 4])
