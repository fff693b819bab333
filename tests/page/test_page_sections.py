"""The sections of a page in a real browser: what each shows of its result, and its controls."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import detectors
import pytest
from browser import axe_violations, missing, opened

import qdebug

if why := missing():
    pytest.skip(why, allow_module_level=True)

DATA = Path(__file__).parents[2] / "calib_data"
MODEL = DATA / "digits_cnn.onnx"
GIVEN: dict[str, Any] = {"inputs": DATA / "digits_holdout.npz", "samples": 24}
STATE = "document.getElementById('app').page.store.get()"


@pytest.fixture(scope="module")
def searched() -> Any:
    return qdebug.bisect(MODEL, weights="per-tensor", target="output.cosine>=0.99", **GIVEN)


@pytest.fixture(scope="module")
def page_of(tmp_path_factory: pytest.TempPathFactory, searched: Any) -> Callable[[str], Path]:
    """Reports by command, each made once."""
    folder = tmp_path_factory.mktemp("pages")
    made: dict[str, Path] = {}

    def page(command: str) -> Path:
        if command not in made:
            result = searched if command == "bisect" else MAKERS[command](folder)
            qdebug.report(result, output=folder / f"{command}.html")
            made[command] = folder / f"{command}.html"
        return made[command]

    return page


def _compare(folder: Path) -> Path:
    run = folder / "run.h5"
    qdebug.compare(MODEL, weights="per-tensor", output=run, **GIVEN)
    return run


def _calibrate(folder: Path) -> Any:
    calib = DATA / "digits_calib.npz"
    return qdebug.calibrate(MODEL, calib_data=calib, method="minmax,mse", samples=32)


def _sweep(folder: Path) -> Any:
    return qdebug.sweep(MODEL, backend="onnxruntime", precision="int8,fp32", **GIVEN)


MAKERS: dict[str, Callable[[Path], Any]] = {
    "compare": _compare,
    "calibrate": _calibrate,
    "sweep": _sweep,
    "inspect": lambda _: qdebug.inspect(MODEL),
}


@pytest.mark.parametrize("command", ["calibrate", "sweep", "inspect", "bisect"])
def test_accessible_and_quiet(chromium: Any, page_of: Callable[[str], Path], command: str) -> None:
    with opened(chromium, page_of(command)) as watched:
        watched.page.wait_for_timeout(300)
        assert axe_violations(watched.page) == []
        watched.quiet()


def test_the_curve_of_the_first_layers(chromium: Any, page_of: Callable[[str], Path]) -> None:
    """The plot says its figures, the table has them, and a point selects the layer it adds."""
    with opened(chromium, page_of("compare")) as watched:
        page = watched.page
        result = page.evaluate("document.getElementById('app').page.data.runs[0].result")
        points = [p for p in result["curve"]["points"] if p["rises"]]
        section = page.locator("#curve")
        told = section.locator("svg[role=img]").get_attribute("aria-label")
        rows = section.locator("tbody tr").all_text_contents()
        assert len(rows) == 1 + len(points)
        for point, row in zip(points, rows[1:], strict=True):
            assert f"in FP32: {point['value']:.1f}, " in told
            assert row.startswith(str(point["layers"])) and f"{point['value']:.1f}" in row
            assert result["layers"][point["layers"] - 1]["name"] in row or "more" in row
        page.evaluate(
            "document.querySelectorAll('#curve .choosable')[3].dispatchEvent(new Event('click'))"
        )
        assert page.evaluate(STATE)["selected"] == points[2]["layers"] - 1
        assert section.locator(".ring").count() == 1


def test_activations(chromium: Any, page_of: Callable[[str], Path]) -> None:
    with opened(chromium, page_of("compare")) as watched:
        page = watched.page
        section = page.locator("#activations")
        section.locator(".pictures canvas").first.wait_for()
        assert section.locator("h3").count() == 4
        labels = [c.get_attribute("aria-label") for c in section.locator("[role=img]").all()]
        assert len(labels) == 7 and all(labels)  # four charts, three pictures
        assert "step" in next(text for text in labels if text.startswith("Histogram"))
        log = section.get_by_role("button", name="log counts")
        outline = section.locator(".candidate-line").get_attribute("d")
        log.click()
        assert log.get_attribute("aria-pressed") == "false"
        assert section.locator(".candidate-line").get_attribute("d") != outline
        section.locator("summary").click()
        section.get_by_label("Order of the channels").select_option("worst")
        section.locator("summary").click()
        rows = section.locator("details tbody tr")
        rows.first.wait_for()
        assert rows.count() == 24
        worst = [float(x) for x in rows.locator("td:nth-child(2)").all_inner_texts()[:5]]
        assert worst == sorted(worst)
        section.locator(".choices select").select_option("error")
        assert section.locator(".pictures figure").count() == 1
        watched.quiet()


def test_the_slider_of_a_search(
    chromium: Any, page_of: Callable[[str], Path], searched: Any
) -> None:
    points = {p["point"]: p for p in searched.to_dict()["pareto"]}
    answer = sorted(searched.pinned)
    with opened(chromium, page_of("bisect")) as watched:
        page = watched.page
        section = page.locator("#bisect")
        slider = section.locator("input[type=range]")
        shown = f"[...{STATE}.pinned.keys()]"
        assert sorted(page.evaluate(shown)) == answer
        seen = set()
        slider.press("Home")
        for _ in range(int(slider.get_attribute("max") or 0)):
            pinned = sorted(page.evaluate(shown))
            command = section.locator("code.command").inner_text()
            assert ("--select-point" in command) == (pinned != answer)
            if pinned != answer:
                number = int(command.split("--select-point ")[1].split()[0])
                assert pinned == sorted(points[number]["pinned"])
            for name in pinned:
                assert name in section.locator(".pins").inner_text()
            seen.add(tuple(pinned))
            slider.press("ArrowRight")
        assert seen == {tuple(sorted(p["pinned"])) for p in points.values()} | {tuple(answer)}
        section.locator("path.choosable").first.click()
        assert section.locator("output").inner_text().startswith("point 1,")
        watched.quiet()


def test_calibration(chromium: Any, page_of: Callable[[str], Path]) -> None:
    with opened(chromium, page_of("calibrate")) as watched:
        section = watched.page.locator("#calibration")
        table = section.get_by_role("region", name="Tensors: amax")
        table.locator(".tabulator-row").first.wait_for()
        heads = table.locator(".tabulator-col").all_inner_texts()
        assert {"minmax", "mse"} <= {head.strip() for head in heads}
        table.get_by_role("button", name="minmax").press("Enter")
        table.locator("[tabulator-field=m0][aria-sort=descending]").wait_for()
        values = table.locator(".tabulator-cell[tabulator-field=m0]").all_inner_texts()
        numbers = [float(v) for v in values]
        assert numbers == sorted(numbers, reverse=True) and len(numbers) > 3
        assert "Median over the tensors" in (
            section.locator("svg[role=img]").first.get_attribute("aria-label") or ""
        )
        watched.quiet()


def test_combinations(chromium: Any, page_of: Callable[[str], Path]) -> None:
    with opened(chromium, page_of("sweep")) as watched:
        section = watched.page.locator("#sweep")
        section.locator(".tabulator-row").first.wait_for()
        across, up, colour = section.locator(".choices select").all()
        for select in (across, up, colour):
            for option in select.locator("option").all():
                select.select_option(option.get_attribute("value"))
                section.locator("svg[role=img]").wait_for()
        across.select_option("size")
        up.select_option("cosine")
        section.locator("path.choosable").first.wait_for()
        assert section.locator("path.choosable").count() == 2
        section.locator("path.choosable").nth(1).click()
        section.locator(".tabulator-row.selected").wait_for()
        assert section.locator(".ring").count() == 1
        watched.quiet()


def test_a_layer_of_an_engine(chromium: Any, page_of: Callable[[str], Path]) -> None:
    with opened(chromium, page_of("inspect")) as watched:
        page = watched.page
        page.locator("#engine-layers .tabulator-row").first.wait_for()
        row = page.locator("#engine-layers .tabulator-row .link", has_text="blocks.1/depthwise")
        row.click()
        card = page.locator("#card").inner_text()
        assert "/blocks/blocks.1/depthwise/conv/Conv" in card and "FP32" in card
        watched.quiet()


def test_what_is_not_a_number_is_said(chromium: Any, tmp_path: Path) -> None:
    result = qdebug.compare(MODEL, **GIVEN).to_dict()
    layer = result["layers"][0]
    layer |= {"sqnr_db": None, "local_sqnr_db": None, "nan_count": 3}
    layer["non_finite"] = {"sqnr_db": "nan", "local_sqnr_db": "inf"}
    file = tmp_path / "broken.json"
    file.write_text(json.dumps(result))
    qdebug.report(file, output=tmp_path / "broken.html")
    with opened(chromium, tmp_path / "broken.html") as watched:
        tiles = watched.page.locator("#card .figures > div").all_inner_texts()
        said = dict(tile.split("\n", 1) for tile in tiles)
        assert said["cumulative error (SQNR)"] == "NaN"
        assert said["local error (SQNR)"] == "exact"
        assert said["NaN values"] == "3"
        missing_part = watched.page.locator("#activations .lacking").inner_text()
        assert "output=" in missing_part  # what keeps them
        watched.quiet()


def test_where_data_is_converted(chromium: Any, tmp_path: Path) -> None:
    """A reformat is marked at the node that it is for, and is no frame of its own."""
    name = "/stem/conv/Conv"
    half = {"Name": "a", "Dimensions": [1, 1, 8, 8], "Format/Datatype": "Row major linear FP16"}
    full = {**half, "Name": "input", "Format/Datatype": "Row major linear FP32"}
    copy = f"Reformatting CopyNode for Input Tensor 0 to {name} + /stem/act/Clip"
    layers = [
        {"Name": copy, "LayerType": "Reformat", "Inputs": [full], "Outputs": [half]},
        {
            "Name": f"{name} + /stem/act/Clip",
            "LayerType": "CaskConvolution",
            "Inputs": [half],
            "Outputs": [{**half, "Name": "b"}],
        },
    ]
    (tmp_path / "layers.json").write_text(json.dumps({"Layers": layers, "Bindings": ["input"]}))
    page = tmp_path / "page.html"
    qdebug.inspect(tmp_path / "layers.json", model=MODEL, html=page)
    with opened(chromium, page) as watched:
        scene = "document.getElementById('graph').view.scene"
        marked = f"{scene}.boxes.filter(b => b.reformats).map(b => b.item.node)"
        assert watched.page.evaluate(marked) == [0]
        assert watched.page.evaluate(f"{scene}.hulls.length") == 1
        watched.quiet()


def test_the_first_screen_of_an_engine_tells_where_its_time_goes(
    chromium: Any, tmp_path: Path
) -> None:
    def layer(name: str, kind: str, reads: str, writes: str, **more: Any) -> dict[str, Any]:
        ends = [
            [{"Name": f"{name}{side}", "Dimensions": [1, 8, 4, 4], "Format/Datatype": dtype}]
            for side, dtype in enumerate((reads, writes))
        ]
        return {"Name": name, "LayerType": kind, "Inputs": ends[0], "Outputs": ends[1], **more}

    layers = [
        layer("copy", "Reformat", "Float", "Int8"),
        layer("conv", "CaskConvolution", "Int8", "Float", Weights={"Type": "Int8", "Count": 576}),
        layer("{ForeignNode[a...b]}", "Myelin", "Float", "Float"),
    ]
    names = [entry["Name"] for entry in layers]
    times = [{"name": n, "averageMs": ms} for n, ms in zip(names, (1, 2, 1), strict=True)]
    (tmp_path / "layers.json").write_text(json.dumps({"Layers": layers}))
    (tmp_path / "profile.json").write_text(json.dumps([{"count": 1}, *times]))
    page = tmp_path / "page.html"
    qdebug.inspect(tmp_path / "layers.json", profile=tmp_path / "profile.json", html=page)
    with opened(chromium, page) as watched:
        parts = watched.page.locator("#inspect .strip i")
        widths = parts.evaluate_all("found => found.map(part => part.style.width)")
        assert widths == ["25%", "50%", "25%"]
        parts.nth(2).click()
        assert watched.page.evaluate(STATE)["selected"] == 2
        text = watched.page.locator("#inspect").inner_text()
        assert "INT8\t1\t2 ms\t50%" in text and "9.22 k" in text
        costs = watched.page.locator("#inspect .cost summary").all_inner_texts()
        assert costs[0].endswith("(1, 2 ms)")  # what writes FP32; then the copy that converts
        assert axe_violations(watched.page) == []
        watched.quiet()


def test_the_parts_of_an_output(chromium: Any, tmp_path: Path) -> None:
    fp32, int8, samples = detectors.quantized(detectors.joined, tmp_path)
    run = tmp_path / "run.h5"
    how = {"reference": fp32, "inputs": samples, "effect": "none"}
    result = qdebug.compare(int8, output=run, **how)
    qdebug.report(run, output=tmp_path / "page.html")
    with opened(chromium, tmp_path / "page.html") as watched:
        text = watched.page.inner_text("#app")
    for part in result.outputs[0].parts:
        assert f"{part.places} from {part.branch}" in text
