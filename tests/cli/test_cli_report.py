"""`qdebug report`: one page of a run, of several, or of the JSON of any command."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shlex
from pathlib import Path
from typing import Any

import h5py
import jsonschema
import pytest

import qdebug
from qdebug.result import json_schema


def page(name: str = "run.html") -> Any:
    """The data of a page."""
    text = Path(name).read_text("utf-8")
    (found,) = re.findall(r'<script type="application/json" id="page-data">(.*)</script>', text)
    return json.loads(found)


def detail(name: str, run: int, tensor: str) -> Any:
    """What a page has of a tensor."""
    number = page(name)["runs"][run]["details"][tensor]
    (block,) = re.findall(rf'id="details-{run}-{number}">(.*)</script>', Path(name).read_text())
    return json.loads(gzip.decompress(base64.b64decode(block)))[tensor]


def test_a_run(desk: Any) -> None:
    flags = ("--calib-data", "calib.npz", "--keep", "all", "-o", "run.h5")
    result = desk.result(*flags)
    Path("net.onnx").unlink()  # the page needs no model
    done = desk.run("report", "run.h5")
    assert done.code == 0, done.err
    data = page()
    (run,) = data["runs"]
    assert run["kind"] == "compare" and run["label"] == "run.h5"
    with h5py.File("run.h5") as file:
        assert run["result"] == json.loads(file["results"].asstr()[()])
    names = [node["name"] for node in run["network"]["nodes"]]
    assert names == ["conv1", "relu1", "conv2", "add", "relu2", "pool", "flatten", "fc"]
    layers = [layer["name"] for layer in result["layers"]]
    for node in run["network"]["nodes"]:
        assert node["planned"] == ("int8" if node["group"][:2] in ("co", "fc") else "fp32")
        assert layers[node["layer"]] == node["group"]
    conv2 = run["network"]["nodes"][2]
    assert conv2["inputs"] == [1] and conv2["weight"] == "4×4×3×3" and conv2["shape"] == "?×4×8×8"
    assert run["network"]["readers_of_inputs"] == [[0]]
    assert set(run["details"]) == {t["name"] for t in result["tensors"]} | {"x"}
    shown = detail("run.html", 0, "r1")
    assert shown["samples"] == 12 and shown["histogram"]["amax"] > 0
    assert shown["picture"]["shape"] == [1, 4, 8, 8]
    assert run["missing"] == []


def test_the_command_of_a_page_gives_the_same_result(desk: Any) -> None:
    flags = ("--calib-data", "calib.npz", "--weights", "per-tensor", "--fail-on",
             "output.cosine>=0.5", "--no-cache", "-o", "run.h5")  # fmt: skip
    result = desk.result(*flags)
    desk.run("report", "run.h5")
    found = page()["runs"][0]["reproduction"]
    program, *arguments = shlex.split(found["command"])
    assert program == "qdebug" and {"--no-cache", "--weights", "--fail-on"} <= set(arguments)
    again = desk.run(*arguments, "--json", "-").json
    assert again["layers"] == result["layers"] and again["verdict"] == result["verdict"]
    assert found["hashes"]["model"] == result["model"]["sha256"]
    assert found["versions"]["qdebug"] == qdebug.__version__


def test_what_is_not_kept_is_said(desk: Any) -> None:
    desk.compare("--keep", "none", "--effect", "none", "--calib-data", "calib.npz", "-o", "run.h5")
    done = desk.run("report", "run.h5", "--json", "-")
    whats = {m["what"]: m for m in page()["runs"][0]["missing"]}
    assert set(whats) == {"activations", "effects"}
    assert "--keep" in whats["activations"]["remedy"]
    assert len(done.json["notes"]) == 2
    jsonschema.validate(done.json, json_schema(qdebug.ReportResult, closed=True))
    shown = detail("run.html", 0, "r1")
    assert shown["histogram"]["samples"] == "calibration"
    assert shown["histogram"]["candidate"] is None and shown["picture"] is None


def without_network(name: str) -> None:
    with h5py.File(name, "r+") as file:
        del file["network"]


def test_an_older_run_without_its_network(desk: Any) -> None:
    desk.compare("--calib-data", "calib.npz", "-o", "run.h5")
    desk.run("report", "run.h5", "-o", "new.html")
    without_network("run.h5")
    desk.run("report", "run.h5", "-o", "old.html")
    assert page("old.html")["runs"][0]["network"] == page("new.html")["runs"][0]["network"]
    new, old = (detail(name, 0, "r1")["histogram"] for name in ("new.html", "old.html"))
    assert old == new
    Path("net.onnx").rename("moved.onnx")
    desk.run("report", "run.h5", "-o", "none.html")
    (run,) = page("none.html")["runs"]
    assert run["network"] is None and run["missing"][0]["what"] == "network"
    desk.run("report", "run.h5", "--model", "moved.onnx", "-o", "given.html")
    assert page("given.html")["runs"][0]["network"] == page("new.html")["runs"][0]["network"]


def test_two_runs(desk: Any) -> None:
    desk.compare("-o", "a.h5")
    desk.compare("--weights", "per-tensor", "-o", "b.h5")
    done = desk.run("report", "a.h5", "b.h5", "-o", "both.html")
    assert done.code == 0 and "different" not in done.out
    assert [run["label"] for run in page("both.html")["runs"]] == ["a.h5", "b.h5"]
    assert detail("both.html", 1, "r1")["name"] == "r1"


def test_two_runs_of_different_models(desk: Any, digits: Path) -> None:
    desk.compare("-o", "a.h5")
    cnn, holdout = digits / "digits_cnn.onnx", digits / "digits_holdout.npz"
    desk.run("compare", cnn, "--inputs", holdout, "--samples", 4, "-o", "b.h5")
    done = desk.run("report", "a.h5", "b.h5", "-o", "both.html", "--json", "-")
    assert done.code == 0 and any("different models" in note for note in done.json["notes"])


COMMANDS = {
    "compare": ("compare", "net.onnx", "--inputs", "data.npz"),
    "calibrate": ("calibrate", "net.onnx", "--calib-data", "calib.npz"),
    "bisect": ("bisect", "net.onnx", "--inputs", "data.npz", "--target", "output.sqnr_db>=30"),
    "ranges": ("ranges", "net.onnx", "--calib-data", "calib.npz"),
    "inspect": ("inspect", "net.onnx"),
    "sweep": ("sweep", "net.onnx", "--inputs", "data.npz", "--backend", "onnxruntime"),
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_the_json_of_any_command(desk: Any, kind: str) -> None:
    done = desk.run(*COMMANDS[kind], "--json", "found.json")
    assert done.code in (0, 1), done.err
    done = desk.run("report", "found.json")
    assert done.code == 0, done.err
    (run,) = page("found.html")["runs"]
    assert run["kind"] == kind and len(run["headline"]) > 20
    assert run["result"] == json.loads(Path("found.json").read_text())
    assert len(run["network"]["nodes"]) == 8


def test_refusals(desk: Any) -> None:
    desk.refused("report", "nope.h5", says=["QD-STORE-NOT-FOUND", "nope.h5"])
    desk.refused("report", "nope.json", says=["QD-USAGE-FILE-UNREADABLE", "nope.json"])
    desk.refused("report", "net.onnx", says=["QD-USAGE-RESULT-FILE", "net.onnx"])
    desk.write("other.json", '{"schema": "qdebug.plan/1"}')
    desk.refused("report", "other.json", says=["QD-USAGE-RESULT-FILE", "other.json"])
    desk.write("empty.json", '{"schema": "qdebug.compare/1"}')
    desk.refused("report", "empty.json", says=["QD-USAGE-RESULT-FILE", "empty.json"])
    desk.write("newer.json", '{"schema": "qdebug.compare/2"}')
    desk.refused("report", "newer.json", says=["QD-USAGE-RESULT-VERSION", "qdebug.compare/2"])
    desk.write("cut.h5", "\x89HDF")
    desk.refused("report", "cut.h5", says=["QD-STORE-NOT-A-RUN", "cut.h5"])
    desk.compare("-o", "run.h5")
    desk.write("page.html", "mine")
    says = ["QD-STORE-OUTPUT-EXISTS", "page.html", "--force"]
    desk.refused("report", "run.h5", "-o", "page.html", says=says)
    desk.refused("report", "run.h5", "-o", "run.h5", says=["QD-USAGE-SAME-FILE", "run.h5"])
    assert desk.run("report", "run.h5", "-o", "page.html", "--force").code == 0
    desk.write("bad.onnx", "x")
    without_network("run.h5")
    desk.refused(
        "report", "run.h5", "--model", "bad.onnx", "-o", "new.html",
        says=["QD-MODEL-TRUNCATED", "--model"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda file: file.attrs.__setitem__("schema", "qdebug.run/2"), "QD-STORE-VERSION"),
        (lambda file: file.attrs.__setitem__("complete", False), "QD-STORE-INCOMPLETE"),
        (lambda file: file.__delitem__("results"), "QD-STORE-DAMAGED"),
        (lambda file: file["network"].__setitem__(slice(0, 9), 0), "QD-STORE-DAMAGED"),
    ],
)
def test_runs_that_cannot_be_shown(desk: Any, change: Any, code: str) -> None:
    desk.compare("-o", "run.h5")
    with h5py.File("run.h5", "r+") as file:
        change(file)
    desk.refused("report", "run.h5", says=[code, "run.h5"])


def test_results_in_memory(desk: Any) -> None:
    result = qdebug.compare("net.onnx", inputs="data.npz")
    with pytest.raises(qdebug.UsageError) as raised:
        qdebug.report(result)
    assert raised.value.code == "QD-USAGE-REQUIRED"
    written = qdebug.report([result, result], output="page.html")
    assert (
        written.file == Path("page.html") and written.size_bytes == Path("page.html").stat().st_size
    )
    Path("result.json").write_text(json.dumps(result.to_dict()), "utf-8")
    qdebug.report("result.json")
    assert page("page.html")["runs"][1]["headline"] == page("result.html")["runs"][0]["headline"]


def network_of(run: Any) -> list[str]:
    return [node["name"] for node in run["network"]["nodes"]]


@pytest.mark.parametrize("kind", [kind for kind in COMMANDS if kind != "ranges"])
def test_a_page_beside_the_result(desk: Any, kind: str) -> None:
    done = desk.run(*COMMANDS[kind], "--html", "page.html", "--json", "found.json")
    assert done.code in (0, 1), done.err
    assert "Wrote page.html" in done.out
    (run,) = page("page.html")["runs"]
    assert run["kind"] == kind and run["label"] == "net.onnx" and len(network_of(run)) == 8
    assert run["result"] == json.loads(Path("found.json").read_text())
    words = shlex.split(run["reproduction"]["command"])
    assert words[:2] == ["qdebug", kind] and "--html" not in words
    if kind != "inspect":
        assert run["reproduction"]["hashes"]["model"] == run["result"]["model"]["sha256"]


def test_a_page_of_a_comparison_has_activations_without_a_run_file(desk: Any) -> None:
    before = desk.files()
    done = desk.compare("--html", "page.html")
    assert done.code == 0 and "No run file" in done.out
    assert set(desk.files()) - set(before) == {"page.html"}
    assert detail("page.html", 0, "r1")["samples"] == 2
    words = shlex.split(page("page.html")["runs"][0]["reproduction"]["command"])
    assert "-o" not in words and "--output" not in words


def test_a_page_of_objects_in_memory(desk: Any, cnn: Any, pictures: Any) -> None:
    qdebug.compare(cnn(), inputs={"x": pictures(3)}, html="page.html")
    (run,) = page("page.html")["runs"]
    assert len(network_of(run)) == 8 and run["reproduction"]["command"] == ""


def test_a_page_that_cannot_be_written_is_refused_before_the_work(desk: Any) -> None:
    says = ["QD-STORE-OUTPUT-PATH", "--html", "nowhere"]
    desk.refused(*COMMANDS["compare"], "--html", "nowhere/page.html", says=says)


@pytest.mark.parametrize(
    ("path", "code"), [("", "QD-USAGE-VALUE"), (".", "QD-USAGE-FILE-UNREADABLE")]
)
def test_no_name_at_all(desk: Any, path: str, code: str) -> None:
    done = desk.run("report", path)
    assert done.code == 2 and code in done.err


def test_another_model_is_told(desk: Any) -> None:
    Path("found.json").write_text(json.dumps(desk.result()))
    assert [m["what"] for m in _shown_with("net.onnx", desk)] == ["activations"]
    other = Path("net.onnx").read_bytes() + b"\x3a\x00"  # an empty field: the same network
    Path("other.onnx").write_bytes(other)
    assert "proof of the network" in [m["what"] for m in _shown_with("other.onnx", desk)]


def _shown_with(model: str, desk: Any) -> Any:
    done = desk.run("report", "found.json", "--model", model, "-o", "x.html", "--force")
    assert done.code == 0, done.err
    return page("x.html")["runs"][0]["missing"]
