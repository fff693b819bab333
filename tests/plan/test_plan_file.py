"""Plans as YAML: nothing is lost on the way, and every mistake is shown with its line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from qdebug.formats.registry import FORMAT_OF
from qdebug.plan.plan import Granularity, PrecisionPlan, TensorRange
from qdebug.plan.planfile import named_model, plan_to_yaml, read_plan
from qdebug.types import Precision

HEAD = "schema: qdebug.plan/1\n"
AMAX = st.floats(0, 3e38, allow_nan=False)
NAMES = st.text(st.characters(codec="utf-8"), max_size=300)
PLANS = st.builds(
    PrecisionPlan,
    precision=st.sampled_from(list(FORMAT_OF)),
    fallback_precision=st.sampled_from([Precision.FP16, Precision.FP32]),
    layers=st.dictionaries(NAMES, st.sampled_from(list(FORMAT_OF)), max_size=4),
    tensors=st.dictionaries(
        NAMES,
        st.builds(
            TensorRange,
            AMAX | st.lists(AMAX, max_size=4).map(tuple),
            st.sampled_from(["manual", "minmax", "percentile:99.99"]),
        ),
        max_size=4,
    ),
    weights=st.sampled_from(Granularity),
    model_sha256=st.sampled_from(["", "ab12" * 16, "1" * 64]),
    calibration=st.text(st.characters(codec="ascii", categories=["L", "N", "Zs"]), max_size=200),
)


def _write(folder: Path, text: str) -> Path:
    path = folder / "plan.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@settings(deadline=None, max_examples=150)
@given(plan=PLANS, comment=NAMES)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, plan: PrecisionPlan, comment: str
) -> None:
    why = dict.fromkeys(plan.layers, comment)
    text = plan_to_yaml(plan, "a model.onnx", header=[comment, "b"], why=why)
    path = _write(tmp_path_factory.getbasetemp(), text)
    assert read_plan(path) == plan
    assert named_model(path) == ("a model.onnx" if plan.model_sha256 else "")


ODD = ["/model/layers.0/mlp:MatMul;1", "блок/свёртка", "", "12", "on", "null", "~", "1e3", "a: b"]
ODD += ["x" * 300, "- dash", "#hash", "'quoted'", '"', "{a}", "[b]", "&anchor", "*alias", "!tag"]


@pytest.mark.parametrize("name", ODD)
def test_any_name_round_trips(tmp_path: Path, name: str) -> None:
    plan = PrecisionPlan(
        Precision.INT8, layers={name: Precision.FP32}, tensors={name: TensorRange(1.5)}
    )
    assert read_plan(_write(tmp_path, plan_to_yaml(plan))) == plan


def test_hand_written_names_stay_text(tmp_path: Path) -> None:
    text = HEAD + "layers: {12: fp16, on: fp32, 0x10: int8, 2020-01-01: fp16, null: fp32}\n"
    names = ["12", "on", "0x10", "2020-01-01", "null"]
    assert list(read_plan(_write(tmp_path, text)).layers) == names


def test_only_schema_is_required(tmp_path: Path) -> None:
    assert read_plan(_write(tmp_path, HEAD)) == PrecisionPlan(Precision.INT8)


def test_numbers_may_be_written_in_short(tmp_path: Path) -> None:
    text = HEAD + "tensors:\n  a: {amax: 1e-3}\n  b: {amax: 2}\n  c: {amax: [1, 2.5]}\n"
    ranges = {n: r.amax for n, r in read_plan(_write(tmp_path, text)).tensors.items()}
    assert ranges == {"a": 0.001, "b": 2.0, "c": (1.0, 2.5)}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "the file is empty"),
        ("\n\n- a\n", 3, "not a mapping"),
        ("just text", 1, "not a mapping"),
        ("a: [1,", 1, "expected"),
        ("a: 1\n\tb: 2", 2, r"'\t'"),
        ("a: 1\nb: 'x\n", 3, "unexpected end of stream"),
        ("a: 1\nb: \x07\n", 2, "control character"),
        ("layers: {}\n", 1, "schema: required key is missing"),
        ("schema: qdebug.plan/2\n", 1, "schema: must be 'qdebug.plan/1'"),
        (HEAD + "\nlayrs: {}\n", 3, "layrs: unknown key"),
        (HEAD + "model:\n  path: m\n  sha: x\n", 4, "model.sha: unknown key"),
        (HEAD + "precision: int4\n", 2, "precision: must be 'w4', 'w8', 'int8', 'fp8', "),
        (
            HEAD + "fallback_precision: int8\n",
            2,
            "fallback_precision: must be 'bf16', 'fp16' or 'fp32'",
        ),
        (HEAD + "weights: per-row\n", 2, "weights: "),
        (HEAD + "layers:\n  a: fp16\n  b: half\n", 4, "layers.b: must be"),
        (HEAD + "layers:\n  a: fp16\n  a: fp32\n", 4, "'a' is given twice"),
        (HEAD + "layers: [a]\n", 2, "layers: must be a mapping"),
        (HEAD + "tensors:\n  t: {}\n", 3, "tensors.t.amax: required key is missing"),
        (HEAD + "tensors:\n  t:\n    amax: -1\n", 4, "tensors.t.amax: must be greater"),
        (HEAD + "tensors:\n  t:\n    amax: .nan\n", 4, "finite number (got nan)"),
        (HEAD + "tensors:\n  t:\n    amax: .inf\n", 4, "finite number (got inf)"),
        (HEAD + "tensors:\n  t:\n    amax: yes\n", 4, "must be a number"),
        (HEAD + "tensors:\n  t:\n    amax: wide\n", 4, "number (got 'wide')"),
        (HEAD + "tensors:\n  t:\n    amax:\n    - 1\n    - -2\n", 6, "t.amax.1: must be"),
        (HEAD + "tensors:\n  t: {amax: 1,\n    lo: 2}\n", 4, "tensors.t.lo: unknown key"),
        (HEAD + "tensors:\n  t: 3\n", 3, "tensors.t: "),
        (HEAD + "calibration: 2020-13-01\n", 2, "month"),
        (HEAD + "calibration: !!python/name:os.system\n", 2, "tag"),
        (HEAD + "? [1]\n: 2\n", 2, "key"),
        (HEAD + "---\nb: 1\n", 2, "another document"),
        (HEAD + "layers: *none\n", 2, "undefined alias"),
        ("[" * 5000, 1, "nested too deeply"),
    ],
)
def test_every_error_names_file_and_line(
    tmp_path: Path, text: str, line: int, message: str
) -> None:
    path = _write(tmp_path, text)
    with refused("QD-PLAN-FILE") as caught:
        read_plan(path)
    assert caught.value.message.startswith(f"{path}:{line}: "), caught.value.message
    assert message in caught.value.message
    assert caught.value.exit_code == 2


def test_an_unknown_key_lists_the_known_ones(tmp_path: Path) -> None:
    with refused("QD-PLAN-FILE") as caught:
        read_plan(_write(tmp_path, HEAD + "layer: {}\n"))
    assert re.search(r"Known keys: schema, model, .*layers", caught.value.hint)


def test_a_missing_or_binary_file(tmp_path: Path) -> None:
    with refused("QD-PLAN-FILE"):
        read_plan(tmp_path / "none.yaml")
    with refused("QD-PLAN-FILE"):
        read_plan(tmp_path)
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00\x80")
    with refused("QD-PLAN-FILE", "b.yaml"):
        read_plan(tmp_path / "b.yaml")
