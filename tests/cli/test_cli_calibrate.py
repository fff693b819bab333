"""`qdebug calibrate` on the bundled network, and its files given to the other commands."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import yaml

from qdebug.cli.app import main
from qdebug.plan.trtcache import read_cache

DATA = Path(__file__).parents[2] / "calib_data"
CNN = str(DATA / "digits_cnn.onnx")
CALIB = ["--calib-data", str(DATA / "digits_calib.npz")]
HOLDOUT = ["--holdout", str(DATA / "digits_holdout.npz"), "--batch-size", "25"]
METHODS = ["minmax", "percentile:99.99", "entropy", "mse", "mean-max"]
FIGURES = ["--effect", "none", "--batch-size", "25", "--json", "-"]


def calibrated(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    import json

    assert main(["calibrate", CNN, *CALIB, *flags, "--json", "-"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], code: str, *argv: str) -> str:
    assert main(["calibrate", *argv]) == 2
    shown = capsys.readouterr()
    assert f"[{code}]" in shown.err, shown.err
    assert not shown.out
    return shown.err


def test_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    found = calibrated(capsys, *HOLDOUT, "--metric", "top1")
    assert found["schema"] == "qdebug.calibrate/1"
    assert list(found["methods"]) == METHODS
    assert (found["calibration_samples"], found["held_out_samples"]) == (128, 500)
    declared = {"higher_is_better": True, "is_share": True, "is_chance": False}
    low, high = found["metric"].pop("interval")
    assert low < 0.986 < high
    assert found["metric"] == {"name": "top1", "reference": 0.986, **declared}
    for method in found["methods"].values():
        assert set(method) >= {"tensors", "outputs", "metric", "sqnr_db"}
        assert len(method["tensors"]) == 14
        for entry in method["tensors"].values():
            assert entry["scale"] == np.float32(entry["amax"] / 127)
            assert 0 <= entry["clipped_fraction"] < 0.5
        assert method["outputs"]["logits"]["sqnr_db"] == method["sqnr_db"]
    assert found["best"] in METHODS
    best, top = found["methods"][found["best"]], max(m["metric"] for m in found["methods"].values())
    error = (top * (1 - top) / 500) ** 0.5
    close = [m for m in found["methods"].values() if m["metric"] >= top - error]
    assert best["sqnr_db"] == max(m["sqnr_db"] for m in close)
    assert (
        found["best_by"] == f"output SQNR among the {len(close)} that the metric cannot tell apart"
    )
    assert set(found["coverage"]) == {"growth", "stretched_by_one_sample", "held_out"}


def test_another_calibrator_changes_the_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    """ReLU6 puts many values at exactly 6; entropy cuts them off, minmax does not."""
    methods = calibrated(capsys, *HOLDOUT, "--metric", "top1")["methods"]
    assert methods["minmax"]["metric"] > 0.97
    assert methods["entropy"]["metric"] < 0.5


def test_minmax_is_the_exact_extreme_of_every_tensor(capsys: pytest.CaptureFixture[str]) -> None:
    found = calibrated(capsys, *HOLDOUT, "--method", "minmax")
    tensors = found["methods"]["minmax"]["tensors"]
    model = onnx.load(CNN)
    model.graph.output.extend(onnx.ValueInfoProto(name=t) for t in tensors if t != "input")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = dict(np.load(DATA / "digits_calib.npz"))
    values = dict(
        zip((o.name for o in session.get_outputs()), session.run(None, feeds), strict=True)
    )
    values["input"] = feeds["input"]
    for tensor, entry in tensors.items():
        assert entry["amax"] == pytest.approx(float(np.abs(values[tensor]).max()), rel=1e-5), tensor


def test_a_share_is_held_out(capsys: pytest.CaptureFixture[str]) -> None:
    found = calibrated(capsys, "--holdout-share", "0.25", "--method", "minmax")
    assert found["calibration_samples"] + found["held_out_samples"] == 128
    assert 20 <= found["held_out_samples"] <= 44


def test_a_second_calibration_runs_no_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QDEBUG_CACHE_DIR", str(tmp_path / "cache"))
    first = calibrated(capsys, *HOLDOUT, "--method", "minmax")
    assert not first["from_cache"]
    monkeypatch.setattr("qdebug.execute.gather.Histograms.reduce", None)
    again = calibrated(capsys, *HOLDOUT, "--method", "minmax,mse")
    assert again["from_cache"]
    assert again["methods"]["minmax"] == first["methods"]["minmax"]
    assert again["coverage"] == first["coverage"]


def test_a_damaged_cache_is_as_if_it_were_not_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QDEBUG_CACHE_DIR", str(tmp_path))
    first = calibrated(capsys, *HOLDOUT, "--method", "minmax")
    for file in (tmp_path / "memo").iterdir():
        file.write_bytes(file.read_bytes()[:2000])
    again = calibrated(capsys, *HOLDOUT, "--method", "minmax")
    assert not again["from_cache"]
    assert again["methods"] == first["methods"]


def test_scales_and_cache_are_written_and_mean_the_same(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    scales, cache = tmp_path / "scales.yaml", tmp_path / "int8.cache"
    argv = ["calibrate", CNN, *CALIB, *HOLDOUT, "--method", "mse"]
    argv += ["-o", str(scales), "--trt-cache", str(cache)]
    assert main(argv) == 0
    assert f"Wrote {scales}" in capsys.readouterr().out
    written = yaml.safe_load(scales.read_text())
    read = read_cache(cache)
    assert read.kind == "EntropyCalibration2"
    assert set(read.scales) == set(written["tensors"])
    for name, entry in written["tensors"].items():
        assert entry["method"] == "mse"
        assert read.scales[name] == np.float32(entry["scale"])
    first = cache.read_text().splitlines()[1]
    bits = bytes.fromhex(first.rpartition(": ")[2])
    assert struct.unpack(">f", bits)[0] == read.scales[first.rpartition(": ")[0]]
    refused(capsys, "QD-STORE-OUTPUT-EXISTS", CNN, *CALIB, "-o", str(scales))
    assert main([*argv, "--force"]) == 0


def test_compare_takes_scales_and_caches(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import json

    scales, cache = tmp_path / "scales.yaml", tmp_path / "int8.cache"
    argv = ["calibrate", CNN, *CALIB, *HOLDOUT, "--method", "mse"]
    assert main([*argv, "-o", str(scales), "--trt-cache", str(cache)]) == 0
    expected = calibrated(capsys_drained(capsys), *HOLDOUT, "--method", "mse")
    for file in (scales, cache):
        run = ["compare", CNN, "--inputs", HOLDOUT[1], "--calibration", str(file), *FIGURES]
        assert main(run) == 0
        output = json.loads(capsys.readouterr().out)["outputs"][0]
        sqnr = expected["methods"]["mse"]["sqnr_db"]
        assert output["sqnr_db"] == pytest.approx(sqnr, abs=0.05)


def capsys_drained(capsys: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    capsys.readouterr()
    return capsys


def test_an_old_cache_is_judged_and_its_faults_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cache = tmp_path / "old.cache"
    argv = ["calibrate", CNN, *CALIB, *HOLDOUT, "--method", "minmax", "--trt-cache", str(cache)]
    assert main(argv) == 0
    capsys.readouterr()
    lines = cache.read_text().splitlines()
    names = [line.rpartition(": ")[0] for line in lines[1:]]
    scales = dict(zip(names, read_cache(cache).scales.values(), strict=True))
    spoilt = [lines[0]]
    for name in names[1:]:
        scale = scales[name] * {names[1]: 8.0, names[2]: 0.0}.get(name, 1.0)
        spoilt.append(f"{name}: {struct.pack('>f', scale).hex()}")
    spoilt.append(f"gone: {struct.pack('>f', 1.0).hex()}")
    cache.write_text("\n".join(spoilt))
    found = calibrated(capsys, *HOLDOUT, "--method", "minmax", "--from-cache", str(cache))
    difference = found["cache_difference"]
    assert difference["written_by"] == "TensorRT 10.16.0, EntropyCalibration2"
    assert difference["missing"] == [names[0]]
    assert difference["unknown"] == ["gone"]
    assert difference["degenerate"] == [names[2]]
    assert [d["tensor"] for d in difference["different"]] == [names[1]]
    assert difference["different"][0]["given"] == pytest.approx(
        8 * difference["different"][0]["fresh"], rel=1e-5
    )
    assert "given" not in found["methods"]  # it lacks a tensor, so it cannot be judged
    assert main(["calibrate", CNN, *CALIB, *HOLDOUT, "--from-cache", str(cache)]) == 0
    assert "TensorRT 10.16.0, EntropyCalibration2" in capsys.readouterr().out
    cache.write_text("\n".join([*spoilt, f"{names[0]}: {struct.pack('>f', 0.01).hex()}"]))
    found = calibrated(capsys, *HOLDOUT, "--method", "minmax", "--from-cache", str(cache))
    assert found["methods"]["given"]["sqnr_db"] < found["methods"]["minmax"]["sqnr_db"]


def test_weights_by_least_squared_error_help_and_are_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    scales, cache = str(tmp_path / "scales.yaml"), tmp_path / "int8.cache"
    flags = [*HOLDOUT, "--method", "minmax", "-o", scales, "--trt-cache", str(cache)]
    plain = calibrated(capsys, *flags)
    assert plain["weights"] == {}
    better = calibrated(capsys, *flags, "--weight-method", "mse", "--force")
    weights = better["weights"]
    assert len(weights) == 14
    assert {entry["method"] for entry in weights.values()} == {"mse"}
    assert better["methods"]["minmax"]["sqnr_db"] > plain["methods"]["minmax"]["sqnr_db"] + 0.3
    assert len(read_cache(cache).scales) == 14  # TensorRT takes the ranges of weights itself
    import json

    argv = ["compare", CNN, "--inputs", HOLDOUT[1], "--calibration", scales, *FIGURES]
    assert main(argv) == 0
    found = json.loads(capsys.readouterr().out)["outputs"][0]["sqnr_db"]
    assert found == pytest.approx(better["methods"]["minmax"]["sqnr_db"], abs=0.01)
    coarse = calibrated(
        capsys, *HOLDOUT, "--weights", "per-tensor", "--weight-method", "mse", "--method", "minmax"
    )
    assert all(isinstance(entry["amax"], float) for entry in coarse["weights"].values())


def test_the_users_own_calibrator(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text("def ninety(histogram):\n    return 0.9 * histogram.amax\n")
    flags = [*HOLDOUT, "--method", "minmax", "--calibrator", f"{script}:ninety"]
    methods = calibrated(capsys, *flags)["methods"]
    assert list(methods) == ["minmax", "ninety"]
    for tensor, entry in methods["ninety"]["tensors"].items():
        assert entry["amax"] == pytest.approx(0.9 * methods["minmax"]["tensors"][tensor]["amax"])


def test_the_table_fits_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", CNN, *CALIB, *HOLDOUT, "--metric", "top1"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert all(line == line.rstrip() for line in shown.splitlines())
    assert any(line.startswith("Best: ") for line in shown.splitlines())


@pytest.mark.parametrize(
    ("argv", "code", "part"),
    [
        ([CNN, *CALIB, "--method", "entropie"], "QD-USAGE-CALIBRATOR", "'entropy'"),
        ([CNN, *CALIB, "--method", ""], "QD-USAGE-VALUE", "--method"),
        ([CNN, *CALIB, "--weights", "x"], "QD-USAGE-CHOICE", "--weights"),
        ([CNN, *CALIB, "--weight-method", "x"], "QD-USAGE-CHOICE", "--weight-method"),
        ([CNN, *CALIB, "--samples", "1"], "QD-USAGE-HOLDOUT", "--holdout"),
        ([CNN, *CALIB, "--metric", "top1"], "QD-METRIC-LABELS", "labels"),
        ([CNN, *CALIB, "-o", "none/scales.yaml"], "QD-STORE-OUTPUT-PATH", "none/scales.yaml"),
        (["none.onnx", *CALIB], "QD-MODEL-NOT-FOUND", "none.onnx"),
    ],
)
def test_bad_input(
    capsys: pytest.CaptureFixture[str], argv: list[str], code: str, part: str
) -> None:
    assert part in refused(capsys, code, *argv)


def test_of_a_metric_where_lower_is_better_the_lowest_is_best(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code = "import numpy as np\ndef loss(outputs, reference):\n"
    code += "    return 100 + float(np.square(outputs['logits'] - reference['logits']).mean())\n"
    (tmp_path / "far.py").write_text(code, encoding="utf-8")
    found = calibrated(capsys, *HOLDOUT, "--metric", f"{tmp_path / 'far.py'}:loss")
    values = {name: method["metric"] for name, method in found["methods"].items()}
    assert found["best"] == min(values, key=lambda name: values[name])
    assert found["metric"]["higher_is_better"] is False and found["best_by"] == "the metric"
