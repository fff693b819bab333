"""`qdebug repair` as its users run it: what it writes, bad input, killed repairs, its target."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qdebug
from qdebug.decide.remedies.result import Figures, Outcome, Proof
from qdebug.display.repair import view
from qdebug.plan.repaired import remedies_in

BUNDLED = Path(__file__).parents[2] / "calib_data"
CNN = [
    *(str(BUNDLED / "digits_cnn.onnx"), "--calib-data", str(BUNDLED / "digits_calib.npz")),
    *("--inputs", str(BUNDLED / "digits_holdout.npz"), "--weights", "per-tensor"),
    *("--batch-size", "25", "--metric", "top1"),
]
SMALL = ["net.onnx", "--calib-data", "calib.npz", "--inputs", "data.npz"]
QUICK = ["--only", "ranges,bias-correction"]


@pytest.fixture(scope="module")
def repaired(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The bundled network, whose INT8 with one scale per weight loses 21 points, repaired."""
    folder = tmp_path_factory.mktemp("repaired")
    result = qdebug.repair(
        CNN[0],
        calib_data=CNN[2],
        inputs=CNN[4],
        weights="per-tensor",
        metric="top1",
        batch_size=25,
        max_drop=0.01,
        only="ranges,least-squares",
        output=str(folder / "model.int8.onnx"),
        save_plan=str(folder / "plan.yaml"),
        save_fp32=str(folder / "model.fp32.onnx"),
        trt_cache=str(folder / "calibration.cache"),
        cache=False,
    )
    return result, folder


def test_the_loss_is_given_back_without_a_pin(repaired: tuple[Any, Path]) -> None:
    result, _ = repaired
    assert result.passed and not result.pinned and result.pinning is None
    assert result.accepted == ("ranges", "least-squares")
    proof = result.proof
    assert proof.start.metric < 0.85 and proof.recovered >= 0.9
    assert proof.repaired.sqnr_db > proof.start.sqnr_db + 10
    assert {result.choosing_samples, proof.samples} == {250}
    kept = [step for step in result.steps if step.accepted]
    assert {step.outcome for step in kept} == {Outcome.KEPT}
    lost = round(250 * (proof.reference_metric - proof.start.metric))
    assert proof.lost_samples == lost and 0.9 * lost <= proof.recovered_samples <= lost


def test_what_was_proven_is_what_was_written(repaired: tuple[Any, Path]) -> None:
    result, folder = repaired
    with np.load(CNN[4]) as data:
        samples = qdebug.open_samples({"input": data["input"], "labels": data["labels"]}, CNN[0])
    seen = qdebug.compare(
        str(folder / "model.int8.onnx"), reference=CNN[0], inputs=samples, metric="top1",
        effect="none",
    )  # fmt: skip
    both = [result.repaired.sqnr_db, result.proof.repaired.sqnr_db]
    assert min(both) - 0.01 <= seen.outputs[0].metrics.sqnr_db <= max(both) + 0.01
    assert any("rounding" in note for note in seen.notes)
    assert seen.metric is not None and seen.metric.candidate == pytest.approx(
        (result.repaired.metric + result.proof.repaired.metric) / 2
    )


def test_the_model_is_as_tensorrt_takes_it(repaired: tuple[Any, Path]) -> None:
    _, folder = repaired
    model = onnx.load(folder / "model.int8.onnx")
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    quantizers = [n for n in model.graph.node if n.op_type == "QuantizeLinear"]
    assert len(quantizers) == 14
    for node in quantizers:
        assert constants[node.input[1]].shape == () and constants[node.input[2]].dtype == np.int8
        assert not constants[node.input[2]].any()


def test_the_plan_and_the_cache_are_for_the_fp32_model(repaired: tuple[Any, Path]) -> None:
    _, folder = repaired
    seen = [
        qdebug.compare(
            str(folder / "model.fp32.onnx"), inputs=CNN[4], samples=32, effect="none", **ranges
        ).outputs[0].metrics.sqnr_db
        for ranges in (
            {"plan": str(folder / "plan.yaml")},
            {"calibration": str(folder / "calibration.cache"), "weights": "per-tensor"},
        )
    ]  # fmt: skip
    assert seen[0] == pytest.approx(seen[1])


def test_what_is_quantized_anew_is_not_called_unchanged(repaired: tuple[Any, Path]) -> None:
    """Of a model that others quantized another network comes back, without any remedy."""
    without = replace(repaired[0], steps=())
    anew = repr(view(without))
    assert "PASSED with the model quantized anew" in anew and "unchanged" not in anew
    start = without.proof.start
    same = repr(view(replace(without, proof=replace(without.proof, repaired=start))))
    assert "nothing changed" in same and "unchanged" in same and "anew" not in same


def test_what_no_remedy_gives_is_pinned(desk: Any) -> None:
    done = desk.run("repair", *CNN, "--max-drop", "0.01", "--only", "equalization", "--json", "-")
    assert done.code == 0
    found = done.json
    assert any("2 samples of the 250" in note for note in found["notes"])  # of a drop of 0.01
    assert found["passed"] and found["pinned"] and found["proof"]["passed"] is False
    assert found["pinning"]["pinned"] == found["pinned"] and len(found["pinned"]) <= 3
    assert found["dropped_pinning"] is None


def test_remedies_that_make_pins_dearer_are_dropped_and_both_figures_told(desk: Any) -> None:
    options = (
        "--calib-samples",
        "32",
        "--only",
        "bias-correction",
        "--target",
        "output.sqnr_db>=30",
    )
    done = desk.run("repair", *CNN[:-2], *options, "--json", "found.json")
    found = json.loads((desk.folder / "found.json").read_text())
    assert done.code == 0 and found["passed"] and found["reverted"] and not found["accepted"]
    tried = [step["outcome"] for step in found["steps"] if step["accepted"]]
    assert tried and set(tried) == {"dropped-at-the-end"}
    dropped, taken = found["dropped_pinning"], found["pinning"]["cost"]["pinned_share"]
    assert dropped["passed"] and dropped["pinned_share"] > taken
    assert min(dropped["achieved"], dropped["held_out"]) >= 30
    assert len(dropped["pinned"]) > len(found["pinned"])
    for count, cost in ((len(dropped["pinned"]), dropped["pinned_share"]),
                        (len(found["pinned"]), taken)):  # fmt: skip
        assert f"{count} layers pinned, {100 * cost:.2g}% " in done.out


@pytest.mark.parametrize(("least_db", "leaves_some"), [(45, True), (50, True), (55, False)])
def test_pins_are_no_dearer_than_those_of_bisect(
    desk: Any, least_db: int, leaves_some: bool
) -> None:
    samples = dict(np.load(desk.folder / "data.npz"))
    for name, start in (("even.npz", 0), ("odd.npz", 1)):  # what chooses, and what proves
        np.savez(desk.folder / name, **{key: array[start::2] for key, array in samples.items()})
    target = ("--target", f"output.sqnr_db>={least_db}", "--json", "-")
    with_remedies = desk.run("repair", *SMALL, *QUICK, *target).json
    given = ("net.onnx", "--calib-data", "calib.npz", "--inputs", "even.npz")
    alone = desk.run("bisect", *given, "--holdout", "odd.npz", *target).json
    assert alone["passed"] and alone["pinned"]
    # All layers in FP16 are no repair, though they reach the target.
    assert with_remedies["passed"] is leaves_some is (alone["cost"]["saved_share"] > 0)
    shares = [(one or {"cost": {"pinned_share": 0}})["cost"]["pinned_share"]
              for one in (with_remedies["pinning"], alone)]  # fmt: skip
    assert shares[0] <= shares[1]


@pytest.mark.parametrize(
    ("flags", "fitting", "judging"),
    [(["--samples", "6"], 6, 6), (["--samples", "6", "--calib-samples", "4"], 4, 6)],
)
def test_only_so_many_samples_are_used(
    desk: Any, flags: list[str], fitting: int, judging: int
) -> None:
    found = desk.run("repair", *SMALL, *QUICK, *flags, "--json", "-").json
    assert found["calibration_samples"] == fitting
    assert found["choosing_samples"] + found["proof"]["samples"] == judging


@pytest.mark.parametrize(("flags", "why"), [(["--no-pin"], "nothing was to be"), ([], "worth it")])
def test_a_target_that_leaves_nothing_in_int8_is_out_of_reach(
    desk: Any, flags: list[str], why: str
) -> None:
    done = desk.run(
        "repair", *SMALL, *QUICK, "--target", "output.sqnr_db>=90", *flags,
        "-o", "best.onnx", "--json", "-",
    )  # fmt: skip
    assert done.code == 1 and done.json["passed"] is False and why in done.json["explanation"]
    assert not done.json["pinned"]
    assert (desk.folder / "best.onnx").is_file()


def test_a_repair_of_a_quantized_model_starts_from_its_ranges(desk: Any) -> None:
    desk.run(
        "compare", "net.onnx", "--inputs", "data.npz", "--calib-data", "calib.npz",
        "--save-plan", "plan.yaml",
    )  # fmt: skip
    desk.run("export", "plan.yaml", "--model", "net.onnx", "--to", "onnx", "-o", "given.onnx")
    given = ["given.onnx", *SMALL[1:], *QUICK, "--json", "-"]
    done = desk.run("repair", *given, "--reference", "net.onnx")
    whole = desk.run("repair", *SMALL, *QUICK, "--json", "-")
    assert done.code == 0, done.err
    for key in ("baseline", "repaired"):
        assert done.json[key]["sqnr_db"] == pytest.approx(whole.json[key]["sqnr_db"], abs=0.1)
    alone = desk.run("repair", *given)
    assert alone.code == 2 and "QD-USAGE-REPAIR-REFERENCE" in alone.err
    itself = desk.run("repair", *given, "--reference", "given.onnx")
    assert itself.code == 2 and "QD-USAGE-REFERENCE]" in itself.err


def test_no_error_has_no_unit(repaired: tuple[Any, Path]) -> None:
    result, _ = repaired
    figures = replace(result.proof.repaired, sqnr_db=math.inf)
    exact = replace(result, proof=replace(result.proof, repaired=figures))
    text = exact._repr_html_()
    assert "exact" in text and "exact dB" not in text
    assert "dB → exact" in exact.headline()


@pytest.mark.parametrize(
    ("cross_validated", "told"),
    [(True, ", so these are cross-validated"), (False, ", which may flatter these")],
)
def test_it_is_said_whether_the_choice_flatters_the_figures(
    repaired: tuple[Any, Path], cross_validated: bool, told: str
) -> None:
    result, _ = repaired
    assert len(result.proof.answers) > 1
    proof = replace(result.proof, cross_validated=cross_validated)
    assert told in replace(result, proof=proof)._repr_html_()


def test_a_quantized_model_was_not_made_from_another_network(desk: Any) -> None:
    samples = ["--calib-data", str(BUNDLED / "digits_calib.npz"), "--samples", "32"]
    made = desk.run("repair", CNN[0], *samples, "--only", "ranges", "-o", "given.onnx")
    assert made.code == 0, made.err
    other = str(BUNDLED / "digits_encoder.onnx")
    done = desk.run("repair", "given.onnx", *samples, "--reference", other)
    assert done.code == 2 and "QD-USAGE-REPAIR-REFERENCE" in done.err and other in done.err


def test_a_repair_of_a_quantized_model_starts_from_its_ranges_and_biases(desk: Any) -> None:
    with np.load(CNN[4]) as data:
        calib, holdout = CNN[2], desk.data("few.npz", **{k: a[:160] for k, a in data.items()})
    samples = ["--calib-data", calib, "--inputs", holdout, "--batch-size", "20", "--metric", "top1"]
    made = desk.run(
        "repair", CNN[0], *samples[:6], "--only", "bias-correction,ranges", "-o", "given.onnx"
    )
    assert made.code == 0, made.err
    again = ["given.onnx", "--reference", CNN[0], *samples, "--json", "-"]
    # It has no layers here, so that nothing is changed: this is the start.
    start = desk.run("repair", *again, "--only", "equalization", "-o", "start.onnx").json
    assert start["baseline"]["metric"] == start["repaired"]["metric"]
    both = [start[key]["sqnr_db"] for key in ("baseline", "repaired")]
    assert both[0] == pytest.approx(both[1], abs=0.01)
    assert start["started"]["sqnr_db"] == pytest.approx(both[0], abs=0.01)
    assert made.out.count("quantized anew") == 0  # of an FP32 model there is one start
    shown = [*samples[2:], "--effect", "none", "--json", "-"]
    seen = [
        desk.run("compare", name, "--reference", CNN[0], *shown).json
        for name in ("given.onnx", "start.onnx")
    ]
    assert seen[0]["metric"] == seen[1]["metric"]
    figures = [one["outputs"][0]["sqnr_db"] for one in seen]
    assert figures[0] == pytest.approx(figures[1], abs=0.01)
    plain = desk.run("compare", CNN[0], *shown, "--calib-data", calib).json
    assert abs(plain["outputs"][0]["sqnr_db"] - figures[0]) > 0.5
    # By noise: of the metric nothing is lost that could be given back.
    by_noise = [x for x in again if x not in ("--metric", "top1")]
    better = desk.run("repair", *by_noise, "--only", "channel-scales").json
    assert better["accepted"] == ["channel-scales"]
    table = desk.run("repair", *again[:-2], "--only", "channel-scales", "--no-progress").out
    rows = [line.split() for line in table.splitlines()]
    anew = next(k for k, row in enumerate(rows) if row[:2] == ["quantized", "anew"])
    assert rows[anew - 1][0] == "before" and rows[anew - 1][1:] == rows[anew][2:]
    assert better["proof"]["repaired"]["sqnr_db"] > better["proof"]["start"]["sqnr_db"]


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--only", "bias-corection"], "QD-USAGE-CHOICE"),
        (["--only", "ranges", "--never", "ranges"], "QD-USAGE-REMEDY"),
        (["--target", "layer.sqnr_db>=20"], "QD-USAGE-TARGET-SCOPE"),
        (["--target", "output.sqnr_db>=20", "--max-drop", "0.1"], "QD-USAGE-TARGET"),
        (["--max-drop", "0.1"], "QD-METRIC-MISSING"),
        (["--precision", "fp32"], "QD-USAGE-NOTHING-TO-REPAIR"),
        (["--reference", "net.onnx"], "QD-USAGE-REFERENCE"),
        (["--inputs", "calib.npz"], "QD-USAGE-HOLDOUT-SAME"),
    ],
)
def test_bad_input_is_refused(desk: Any, flags: list[str], code: str) -> None:
    given = SMALL[:-2] if "--inputs" in flags else SMALL
    done = desk.run("repair", *given, *flags, "-o", "out.onnx")
    assert done.code == 2 and code in done.err
    assert not (desk.folder / "out.onnx").exists()


def test_few_samples_are_enough_or_are_said_to_be_too_few(desk: Any) -> None:
    with np.load(desk.folder / "calib.npz") as data:
        np.savez(desk.folder / "one.npz", **{name: array[:1] for name, array in data.items()})
    done = desk.run(
        "repair", "net.onnx", "--calib-data", "one.npz", "--inputs", "data.npz", "--json", "-"
    )
    assert done.code == 0, done.err
    too_few = [one for one in done.json["skipped"] if "calibration samples" in one["reason"]]
    assert {"least-squares", "bias-correction"} & {one["remedy"] for one in too_few}


SLOW = """
import glob, os, time
def metric(outputs, reference):
    kept = glob.glob(os.environ["QDEBUG_CACHE_DIR"] + "/repairs/*.npz")
    time.sleep(30 if kept and os.path.exists("hold") else 0.001)
    return -float(abs(outputs['out'] - reference['out']).mean())
"""


AT_ONCE_LATE = """
import time
import numpy as np
calls, real = [], time.monotonic
def metric(outputs, reference):
    calls.append(1)
    if len(calls) == AT:
        time.monotonic = lambda: real() + 1e6
    return -float(np.abs(outputs["out"] - reference["out"]).mean())
"""


@pytest.mark.parametrize("calls", [22, 34])  # when the start has been judged; and later
def test_a_repair_that_ran_out_of_time_says_so(
    desk: Any, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    real = time.monotonic
    desk.write("late.py", f"AT = {calls}\n{AT_ONCE_LATE}")
    flags = [*SMALL, *QUICK, "--json", "found.json", "--metric", "late.py:metric"]
    for limit, more in ((True, []), (True, ["--no-cache", "--force"]), (False, ["--force"])):
        monkeypatch.setattr(time, "monotonic", real)
        done = desk.run("repair", *flags, *more, *(["--time-limit", "1e5"] if limit else []))
        found = json.loads((desk.folder / "found.json").read_text())
        assert done.code == 0
        assert ("time limit" in found["explanation"]) == limit
        assert not limit or bool(found["steps"]) == (calls > 22)


def test_the_report_fits_a_terminal(desk: Any) -> None:
    done = desk.run("repair", *SMALL, *QUICK, "--target", "output.sqnr_db>=90")
    assert done.code == 1 and "NOT REACHED" in done.out and "Nothing was pinned" in done.out
    assert "bias-correction" in done.out and "ranges" in done.out
    assert "INT8 is not worth it: the target takes 3 layers in FP" in done.out


LOSS = """
import numpy as np
def loss(outputs, labels):
    picked = np.take_along_axis(outputs['logits'], labels['labels'][:, None], 1)[:, 0]
    return float(np.mean(np.log(np.exp(outputs['logits']).sum(1)) - picked))
def constant(outputs, labels):
    return 1.0
"""


@pytest.mark.parametrize("target", [["--target", "metric<=0.3"], [], ["--max-rise", "0.05"]])
def test_less_of_a_loss_is_better(desk: Any, target: list[str]) -> None:
    desk.write("loss.py", LOSS)
    flags = [
        *CNN[:-1],
        "loss.py:loss",
        *target,
        "--no-pin",
        "--only",
        "ranges,least-squares",
    ]
    found = desk.run("repair", *flags, "--json", "-").json
    proof = found["proof"]
    assert proof["repaired"]["metric"] < 0.5 * proof["start"]["metric"]
    assert proof["recovered"] > 0.8


def test_a_metric_whose_direction_cannot_be_told_needs_a_word(desk: Any) -> None:
    desk.write("loss.py", LOSS)
    for more in (["loss.py:constant"], ["top1", "--max-rise", "0.1"]):
        done = desk.run("repair", *CNN[:-1], *more)
        assert done.code == 2 and "QD-USAGE-METRIC-DIRECTION" in done.err
    desk.write("up.py", LOSS.replace("return float(", "return -float("))
    done = desk.run("repair", *CNN[:-1], "up.py:loss", "--max-rise", "0.1")
    assert done.code == 2 and "QD-USAGE-METRIC-DIRECTION" in done.err


def test_samples_that_took_part_do_not_prove_in_silence(desk: Any) -> None:
    with np.load(desk.folder / "data.npz") as data:
        np.savez(desk.folder / "part.npz", x=data["x"][1::4])
    done = desk.run("repair", "net.onnx", "--calib-data", "part.npz", *SMALL[3:], *QUICK)
    assert "flatters the result" in done.out
    clean = desk.run("repair", *SMALL, *QUICK)
    assert "flatters the result" not in clean.out


def test_what_is_worse_on_the_samples_that_prove_is_dropped(desk: Any) -> None:
    """Every second sample reaches 30 times as far: those that choose want narrow ranges, those that
    prove the wide ones of the start."""
    rng = np.random.default_rng(0)
    with np.load(desk.folder / "data.npz") as data:
        shape = data["x"].shape[1:]
    x = rng.normal(size=(64, *shape)).astype(np.float32)
    np.savez(desk.folder / "narrow.npz", x=x[::2])
    x[1::2] *= 30
    np.savez(desk.folder / "both.npz", x=x)
    desk.run(
        "compare", "net.onnx", "--inputs", "both.npz", "--calib-data", "both.npz",
        "--save-plan", "wide.yaml",
    )  # fmt: skip
    flags = ["--plan", "wide.yaml", "--calib-data", "narrow.npz", "--inputs", "both.npz"]
    done = desk.run(
        "repair", "net.onnx", *flags, "--only", "ranges", "-o", "out.onnx", "--json", "-"
    )
    found = done.json
    assert found["steps"][0]["accepted"] and found["steps"][0]["gain_db"] > 3
    assert found["reverted"] and not found["accepted"] and found["explanation"]
    assert {step["outcome"] for step in found["steps"]} <= {"dropped-at-the-end", "not-kept"}
    assert found["repaired"] == found["baseline"]
    assert found["proof"]["repaired"] == found["proof"]["start"]
    assert not found["proof"]["cross_validated"]
    before, after = (
        desk.run("compare", *args, "--inputs", "both.npz", "--json", "-").json["outputs"]
        for args in (
            ["net.onnx", "--plan", "wide.yaml"],
            ["out.onnx", "--reference", "net.onnx"],
        )
    )
    assert after[0]["sqnr_db"] == pytest.approx(before[0]["sqnr_db"], abs=0.01)
    assert not remedies_in(onnx.load(desk.folder / "out.onnx"))


def test_one_execution_proves_nothing(desk: Any) -> None:
    with np.load(desk.folder / "data.npz") as data:
        np.savez(desk.folder / "two.npz", **{name: array[:2] for name, array in data.items()})
    found = desk.run(
        "repair", "net.onnx", "--calib-data", "calib.npz", "--inputs", "two.npz", "--json", "-"
    ).json
    assert found["choosing_samples"] == 1 and not found["accepted"]


def test_a_model_of_onnx_runtimes_quantizer_is_a_start(desk: Any) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            with np.load(desk.folder / "calib.npz") as data:
                self._rows = iter([{"x": row[None]} for row in data["x"]])

        def get_next(self) -> Any:
            return next(self._rows, None)

    quantize_static(
        desk.folder / "net.onnx", desk.folder / "ort.onnx", Reader(),
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    flags = ["ort.onnx", *SMALL[1:], "--reference", "net.onnx", *QUICK, "--json", "-"]
    done = desk.run("repair", *flags)
    assert done.code == 0, done.err
    assert any("no INT8 form" in note for note in done.json["notes"])
    assert not any("no rounding of" in note for note in done.json["notes"])
    proof = done.json["proof"]
    assert proof["repaired"]["sqnr_db"] >= proof["start"]["sqnr_db"] - 1.5


def test_without_a_floating_point_output_a_metric_judges(desk: Any) -> None:
    model = onnx.load(desk.folder / "net.onnx")
    model.graph.node.append(onnx.helper.make_node("ArgMax", ["out"], ["best"], "argmax", axis=1))
    del model.graph.output[:]
    kind = onnx.TensorProto.INT64
    model.graph.output.append(onnx.helper.make_tensor_value_info("best", kind, ["N", 1]))
    desk.save(model, "argmax.onnx")
    done = desk.run("repair", "argmax.onnx", *SMALL[1:])
    assert done.code == 2 and "QD-USAGE-NOTHING-TO-JUDGE" in done.err
    judged = desk.run("repair", "argmax.onnx", *SMALL[1:], *QUICK, "--metric", "agreement")
    assert judged.code == 0, judged.err


@pytest.mark.parametrize(
    ("more", "start", "repaired", "recovered", "samples"),
    [
        (True, 0.8, 0.9, 0.5, 50),
        (True, 0.8, 1.2, 1.0, 100),  # better than FP32 is all, not more than all
        (True, 0.8, 0.7, -0.5, -50),
        (True, 1.1, 1.2, None, None),  # nothing was lost
        (False, 1.2, 1.1, 0.5, 50),
        (False, 1.2, 0.9, 1.0, 100),
    ],
)
def test_what_is_recovered_is_at_most_all(
    more: bool, start: float, repaired: float, recovered: float | None, samples: int | None
) -> None:
    figures = [Figures(20.0, metric) for metric in (start, repaired)]
    proof = Proof(500, 1.0, *figures, "", None, higher_is_better=more, metric_is_share=True)
    assert proof.recovered == (recovered and pytest.approx(recovered))
    assert proof.recovered_samples == samples


def test_a_better_result_is_not_replaced(desk: Any) -> None:
    """Of the same question; what is no worse, or answers another one, takes its place."""
    files = ("-o", "model.onnx", "--save-plan", "plan.yaml")
    target = ("--target", "output.sqnr_db>=50")
    assert desk.run("repair", *SMALL, *QUICK, *target, *files).code == 0
    before = {name: (desk.folder / name).read_bytes() for name in files[1::2]}
    worse = desk.run("repair", *SMALL, *QUICK, *target, *files, "--no-pin", "--force")
    assert worse.code == 2 and worse.err.count("QD-STORE-BETTER-RESULT") == 2
    assert "Wrote" not in worse.out and "--output: --output" not in worse.err
    assert before == {name: (desk.folder / name).read_bytes() for name in before}
    # Also where the better one is a plan alone.
    plan = desk.run("repair", *SMALL, *QUICK, *target, *files[2:], "--no-pin", "--force")
    assert plan.code == 2 and before["plan.yaml"] == (desk.folder / "plan.yaml").read_bytes()
    assert desk.run("repair", *SMALL, *QUICK, *target, *files, "--force").code == 0
    other = ("--target", "output.sqnr_db>=90")
    assert desk.run("repair", *SMALL, *QUICK, *other, *files, "--no-pin", "--force").code == 1
    assert before["model.onnx"] != (desk.folder / "model.onnx").read_bytes()
