"""Pages in a real browser: every control, hostile names, small screens, accessibility."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnx
import pytest
from browser import axe_violations, missing, opened
from onnx import TensorProto, helper, numpy_helper

import qdebug
from qdebug.network.samples.sounds import playable
from qdebug.result import to_json
from qdebug.results.shown_samples import ShownSample, ShownSound

if why := missing():
    pytest.skip(why, allow_module_level=True)

DATA = Path(__file__).parents[2] / "calib_data"
ASSETS = Path(__file__).parents[3] / "shared" / "assets"
HOSTILE = (
    "<script>document.title='hacked'</script>",
    "\"onload=\"document.title='hacked'",
    "line\nbreak",
    "\u202egpj.exe right to left",
    "x" * 300,
    "<img src=x onerror=document.title='hacked'>",
)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Reports by name, each made once."""
    folder = tmp_path_factory.mktemp("pages")
    made: dict[str, Path] = {}

    def page(name: str) -> Path:
        if name not in made:
            made[name] = folder / f"{name}.html"
            MAKERS[name](folder, made[name])
        return made[name]

    return page


def _bundled(name: str, **settings: Any) -> Callable[[Path, Path], None]:
    def make(folder: Path, page: Path) -> None:
        run = folder / f"{name}-{len(settings)}.h5"
        qdebug.compare(
            DATA / f"{name}.onnx",
            inputs=DATA / "digits_holdout.npz",
            calib_data=DATA / "digits_calib.npz",
            samples=32,
            metric="top1",
            output=run,
            **settings,
        )
        qdebug.report(run, output=page)

    return make


def _two_runs(folder: Path, page: Path) -> None:
    runs = []
    for weights in ("per-tensor", "per-channel"):
        runs.append(folder / f"{weights}.h5")
        samples = {"inputs": DATA / "digits_holdout.npz", "samples": 16}
        qdebug.compare(DATA / "digits_cnn.onnx", weights=weights, output=runs[-1], **samples)
    qdebug.report(runs, output=page)


def _chain(names: list[str]) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Products of small matrices, one after the other, each named by its place."""
    rng = np.random.default_rng(0)
    weights = {f"w{k}": rng.normal(size=(4, 4)).astype(np.float32) / 2 for k in range(len(names))}
    tensors = ["x", *(f"{name}:0" for name in names)]
    nodes = [
        helper.make_node("MatMul", [tensors[k], f"w{k}"], [tensors[k + 1]], name)
        for k, name in enumerate(names)
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, ["N", 4])],
        [value(tensors[-1], TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(w, name) for name, w in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, {"x": rng.normal(size=(8, 4)).astype(np.float32)}


def _hostile(folder: Path, page: Path) -> None:
    model, inputs = _chain(list(HOSTILE))
    run = folder / "hostile.h5"
    qdebug.compare(model, inputs=inputs, output=run)
    qdebug.report(run, output=page)


def _detector(folder: Path, page: Path) -> None:
    """Classes with hostile names, as the model's metadata have them."""
    model = onnx.load(DATA / "digits_detector.onnx")
    names = dict(enumerate([*HOSTILE, "6", "7", "8", "9"]))
    next(e for e in model.metadata_props if e.key == "names").value = str(names)
    run, scenes = folder / "detector.h5", DATA / "scenes" / "test"
    given = {"calib_data": DATA / "scenes" / "calib", "method": "percentile:90", "effect": "none"}
    qdebug.compare(model, inputs=scenes, samples=12, metric="box-f1", output=run, **given)
    qdebug.report(run, output=page)


def _deep(folder: Path, page: Path) -> None:
    """Two thousand layers without blocks in their names."""
    model, _ = _chain([f"MatMul_{k}" for k in range(2000)])
    result = qdebug.CompareResult.from_dict(_result_of_chain(2000))
    onnx.save(model, folder / "deep.onnx")
    qdebug.report(result, model=folder / "deep.onnx", output=page)


def _result_of_chain(count: int) -> dict[str, Any]:
    model, inputs = _chain(["MatMul_0", "MatMul_1"])
    found = qdebug.compare(model, inputs=inputs).to_dict()
    first = found["layers"][0]
    metrics = {k: v for k, v in found["tensors"][0].items() if k != "name"}
    names = [f"MatMul_{k}" for k in range(count)]
    found["layers"] = [
        {**first, "name": n, "tensor": f"{n}:0", "nodes": [n], "rank": k + 1}
        for k, n in enumerate(names)
    ]
    found["tensors"] = [{"name": f"{n}:0", **metrics} for n in names]
    return found


def _asset(name: str, **settings: Any) -> Callable[[Path, Path], None]:
    def make(folder: Path, page: Path) -> None:
        source = ASSETS / name
        if not source.is_dir():
            pytest.skip(f"needs {source}")
        run = folder / f"{name}.h5"
        model, inputs, calib = source / "model.onnx", source / "inputs.npz", source / "calib.npz"
        given = {"inputs": inputs, "calib_data": calib, "samples": 2, "calib_samples": 2}
        qdebug.compare(model, effect="none", output=run, keep="worst:1", **given, **settings)
        qdebug.report(run, output=page)

    return make


MAKERS: dict[str, Callable[[Path, Path], None]] = {
    "cnn": _bundled("digits_cnn", weights="per-tensor", fail_on=["metric>=0.95"]),
    "encoder": _bundled("digits_encoder"),
    "fp16": _bundled("digits_encoder", precision="fp16"),
    "two runs": _two_runs,
    "hostile": _hostile,
    "detector": _detector,
    "deep": _deep,
    "face": _asset("ultraface_slim"),
    "minilm": _asset("minilm_l6"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_page_opens_without_an_error_or_a_request(
    chromium: Any, pages: Callable[[str], Path], name: str
) -> None:
    with opened(chromium, pages(name)) as watched:
        watched.page.wait_for_timeout(200)
        watched.quiet()
        assert watched.page.locator("#graph canvas").count() == (2 if name == "two runs" else 1)
        assert watched.page.locator("#layers .tabulator-row").count() > 1


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["cnn", "two runs", "hostile", "detector"])
def test_accessible(chromium: Any, pages: Callable[[str], Path], name: str, dark: bool) -> None:
    with opened(chromium, pages(name), dark=dark) as watched:
        watched.page.wait_for_selector("#layers .tabulator-row")
        assert axe_violations(watched.page) == []


@pytest.mark.parametrize("width", [360, 800, 3840])
def test_no_page_is_wider_than_the_screen(
    chromium: Any, pages: Callable[[str], Path], width: int
) -> None:
    for name in ("cnn", "hostile"):
        with opened(chromium, pages(name), width=width, height=800) as watched:
            watched.page.wait_for_selector("#layers .tabulator-row")
            found = watched.page.evaluate("document.documentElement.scrollWidth")
            assert found <= width
            watched.quiet()


def test_hostile_names_are_shown_literally(chromium: Any, pages: Callable[[str], Path]) -> None:
    with opened(chromium, pages("hostile")) as watched:
        page = watched.page
        page.wait_for_selector("#layers .tabulator-row")
        assert page.title().startswith("hostile.h5")
        shown = page.locator("#layers .tabulator-row .link").all_text_contents()
        assert HOSTILE[0] in shown and HOSTILE[1] in shown and HOSTILE[5] in shown
        assert "line\\u000abreak" in shown and "\\u202egpj.exe right to left" in shown
        assert "x" * 300 in shown
        for k in range(len(HOSTILE)):
            page.locator("#layers .tabulator-row .link").nth(k).click()
            page.wait_for_timeout(50)
        assert page.locator("img[onerror], #card script, #graph script").count() == 0
        watched.quiet()


def test_the_worst_pictures_are_shown(chromium: Any, pages: Callable[[str], Path]) -> None:
    with opened(chromium, pages("detector")) as watched:
        first = watched.page.locator("#samples article").first
        assert "loses " in first.locator("h3").text_content()
        assert first.locator("img").evaluate("p => p.decode().then(() => p.naturalWidth)") == 96
        watched.quiet()


def test_texts_and_sounds_are_shown(chromium: Any, tmp_path: Path) -> None:
    """In the place of pictures, as `results.shown_samples` describes them; hostile ones too."""
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    qdebug.compare(_chain(["one"])[0], inputs={"x": x}, effect="none", output=tmp_path / "run.h5")
    url, heard = playable(np.sin(np.arange(80000) / 9).astype(np.float32), 8000)
    sound = ShownSound(url, heard / 8000, 10.0)
    given = [
        ShownSample(3, 0.5, text=HOSTILE[5]),
        ShownSample(1, 0.25, sound=sound),
    ]
    with h5py.File(tmp_path / "run.h5", "a") as file:
        file["shown"] = np.frombuffer(json.dumps(to_json(given)).encode(), np.uint8)
    qdebug.report(tmp_path / "run.h5", output=tmp_path / "page.html")
    with opened(chromium, tmp_path / "page.html") as watched:
        text, heard_one = watched.page.locator("#samples article").all()
        assert text.locator("blockquote").text_content() == HOSTILE[5]
        ready = "player => new Promise(done => { player.onloadeddata = () => done(player.duration);"
        ready += " player.preload = 'auto'; player.load(); })"
        assert heard_one.locator("audio").evaluate(ready) == 4
        assert "the first 4 s of 10 s" in heard_one.text_content()
        assert axe_violations(watched.page) == []
        watched.quiet()


def test_selecting_is_linked(chromium: Any, pages: Callable[[str], Path]) -> None:
    with opened(chromium, pages("cnn")) as watched:
        page = watched.page
        row = page.locator("#layers .tabulator-row .link")
        row.first.wait_for()
        watched.settle()
        name = row.nth(2).text_content()
        row.nth(2).click()
        page.wait_for_function(
            "name => ['#card', '#graph .status'].every("
            "part => document.querySelector(part).textContent.includes(name))",
            arg=name,
        )
        # The search of the graph, which ends at another layer.
        finder = page.get_by_label("Find a node")
        finder.fill("classifier")
        finder.press("Enter")
        page.wait_for_function(
            "[...document.querySelectorAll('#card, #layers .tabulator-row.selected')]"
            ".filter(part => part.textContent.includes('/classifier/Gemm')).length === 2"
        )
        watched.quiet()


def test_two_runs_are_shown_together(chromium: Any, pages: Callable[[str], Path]) -> None:
    """A node that is clicked in either graph is the same layer in all parts, of the run clicked,
    though the two runs rank their layers otherwise."""
    name = "/blocks/blocks.3/depthwise/conv/Conv"
    with opened(chromium, pages("two runs")) as watched:
        page = watched.page
        ranks = page.evaluate(
            "name => document.getElementById('app').page.data.runs"
            ".map(run => run.result.layers.findIndex(layer => layer.name === name))",
            name,
        )
        assert ranks[0] != ranks[1]
        page.get_by_role("button", name="Fit").click()
        choice = page.get_by_label("Run of the layer")
        for run in (0, 1):
            at = page.evaluate(
                """name => { const graph = document.getElementById("graph").view;
                const { view } = graph.shared.get(), nodes = graph.run.network.nodes;
                const box = graph.scene.boxes.find(b => nodes[b.item.node]?.name === name);
                return { x: view.x + view.k * (box.x + 9), y: view.y + view.k * (box.y + 9) }; }""",
                name,
            )
            page.locator("#graph canvas").nth(run).click(position=at)
            assert page.locator("#card .layer-name").inner_text() == name
            assert name in page.locator("#graph .status").inner_text()
            assert choice.input_value() == f"{run}"
            page.locator("#layers .tabulator-row.selected", has_text=name).wait_for()
        choice.select_option("0")
        assert page.locator("#card .layer-name").inner_text() == name
        extents = page.evaluate(
            "document.getElementById('graph').view.scene.extent[1]"
            " === Math.max(...document.getElementById('app').page.data.runs"
            ".flatMap(run => run.result.layers.map(l => l.gain_db ?? 0)))"
        )
        assert extents
        watched.quiet()


def test_the_graph_by_keyboard(chromium: Any, pages: Callable[[str], Path]) -> None:
    with opened(chromium, pages("cnn")) as watched:
        page = watched.page
        canvas = page.locator("#graph canvas")
        page.get_by_role("button", name="Close all").click()
        status = page.locator("#graph .status")
        canvas.focus()
        said = []
        for key in ("ArrowDown", "ArrowDown", "Enter", "ArrowDown", "ArrowUp"):
            canvas.press(key)
            said.append(status.text_content())
        assert len(set(said)) >= 3, said
        before = _view(page)
        canvas.press("+")
        assert _view(page)["k"] > before["k"]
        canvas.press("0")
        canvas.press("Shift+ArrowLeft")
        assert _view(page)["x"] != before["x"]
        watched.quiet()


def _view(page: Any) -> dict[str, float]:
    found: dict[str, float] = page.evaluate(
        "document.getElementById('graph').view.shared.get().view"
    )
    return found


def test_controls_of_the_graph(chromium: Any, pages: Callable[[str], Path]) -> None:
    with opened(chromium, pages("cnn")) as watched:
        page = watched.page
        choice = page.get_by_label("Colour by")
        legends = set()
        for option in choice.locator("option").all():
            choice.select_option(option.get_attribute("value"))
            legends.add(page.locator("#graph .legend").inner_text())
        assert len(legends) >= 6
        boxes = "document.getElementById('graph').view.scene.boxes.length"
        page.get_by_role("button", name="Open all").click()
        many = page.evaluate(boxes)
        page.get_by_role("button", name="Close all").click()
        assert page.evaluate(boxes) < many / 3
        page.get_by_role("button", name="Fit").click()
        paths = page.get_by_role("button", name="Paths")
        paths.click()
        assert paths.get_attribute("aria-pressed") == "true"
        # The wheel scrolls the page until the graph has the focus.
        box = page.locator("#graph canvas").bounding_box()
        page.mouse.move(box["x"] + 5, box["y"] + 5)
        before = _view(page)
        page.mouse.wheel(0, -200)
        page.wait_for_timeout(100)
        assert _view(page)["k"] == before["k"]
        page.locator("#graph canvas").focus()
        page.mouse.wheel(0, -200)
        page.wait_for_function(
            f"document.getElementById('graph').view.shared.get().view.k > {before['k']}"
        )
        watched.quiet()


def test_the_frame_of_a_kernel_holds_nothing_else(
    chromium: Any, pages: Callable[[str], Path]
) -> None:
    with opened(chromium, pages("cnn")) as watched:
        page = watched.page
        page.get_by_role("button", name="Open all").click()
        found = page.evaluate(
            """() => { const graph = document.getElementById("graph").view;
            const kernel = nodes => ({ name: "k", role: "other", precision: "int8", nodes, ms: 1 });
            graph.run.kernels = [kernel([0, 1]), kernel([0, 1, 4]), kernel([3])];
            graph.recolour();
            const within = (box, { x, y, w, h }) =>
                box.x < x + w && box.x + box.w > x && box.y < y + h && box.y + box.h > y;
            return graph.scene.hulls.map(({ parts }) => [parts.length, graph.scene.boxes
                .filter(box => !box.open && parts.some(part => within(box, part)))
                .map(box => box.item.node)]); }"""
        )
        assert [(parts, sorted(nodes)) for parts, nodes in found] == [(1, [0, 1]), (2, [0, 1, 4])]
        page.get_by_role("button", name="Close all").click()
        hulls = page.evaluate("document.getElementById('graph').view.scene.hulls.length")
        assert hulls <= 1  # a closed block that holds more than the kernel has no frame
        watched.quiet()


def test_the_table(chromium: Any, pages: Callable[[str], Path]) -> None:
    with opened(chromium, pages("cnn")) as watched:
        page = watched.page
        rows = page.locator("#layers .tabulator-row")
        rows.first.wait_for()
        everything = rows.count()
        page.get_by_label("Filter layers").fill("depthwise conv")
        page.wait_for_function(
            f"document.querySelectorAll('#layers .tabulator-row').length < {everything}"
        )
        assert rows.count() == 6
        watched.settle()
        page.get_by_role("button", name="cum. dB").click()
        head = ".tabulator-col[tabulator-field=cumulative]"
        page.locator(f"{head}[aria-sort=ascending], {head}[aria-sort=descending]").wait_for()
        page.get_by_role("button", name="Copy as CSV").click()
        page.wait_for_function("navigator.clipboard.readText().then(t => t.includes('layer'))")
        text = page.evaluate("navigator.clipboard.readText()")
        lines = text.strip().split("\n")
        assert len(lines) == 7 and lines[0].split(",")[0] == "layer"
        place = lines[0].split(",").index("cumulative")
        values = [float(line.split(",")[place]) for line in lines[1:]]
        assert values in (sorted(values), sorted(values, reverse=True))
        page.get_by_label("Filter layers").fill("")
        page.locator("#layers summary", has_text="Columns").click()
        page.get_by_label("RMSE").check()
        page.wait_for_selector("#layers .tabulator-col[tabulator-field='rmse']", state="visible")
        watched.quiet()


def test_a_new_user_finds_the_culprits(chromium: Any, pages: Callable[[str], Path]) -> None:
    """The six depthwise layers, their cause and the cure, in what is seen without a click."""
    with opened(chromium, pages("cnn")) as watched:
        page = watched.page
        page.locator("#layers .tabulator-row").first.wait_for()
        card = page.locator("#card").inner_text()
        assert "weight-range" in card and "per-channel" in card
        names = page.locator("#layers .tabulator-row .link").all_text_contents()[:3]
        assert all("depthwise" in name for name in names)
        page.wait_for_selector("#activations svg, #activations canvas")
        watched.quiet()


def test_on_paper(chromium: Any, pages: Callable[[str], Path]) -> None:
    """A table has all its rows, and every section its heading."""
    with opened(chromium, pages("encoder"), width=900, height=700) as watched:
        page = watched.page
        page.locator("#layers .tabulator-row").first.wait_for()
        layers = page.evaluate("document.getElementById('app').page.data.runs[0].result.layers")
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator("#layers .paper tbody tr").count() == len(layers) > 50
        for name in ("Graph", "Layers"):
            assert page.get_by_role("heading", name=name, exact=True).is_visible()
        assert not page.get_by_label("Filter layers").is_visible()
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.locator("#layers .paper").count() == 0
        watched.quiet()
