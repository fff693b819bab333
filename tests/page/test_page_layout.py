"""What a page looks like on a phone, a laptop and a large screen: nothing lies beyond its place,
and the answer is seen first."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from browser import Watched, missing, opened

import qdebug

if why := missing():
    pytest.skip(why, allow_module_level=True)

DATA = Path(__file__).parents[2] / "calib_data"
MODEL = DATA / "digits_cnn.onnx"
GIVEN: dict[str, Any] = {"inputs": DATA / "digits_holdout.npz", "samples": 24}
CALIB: dict[str, Any] = {"calib_data": DATA / "digits_calib.npz"}
SCREENS = {390: 844, 1280: 800, 1920: 1080}


@pytest.fixture(scope="module")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Reports by name, each made once."""
    folder = tmp_path_factory.mktemp("pages")
    made: dict[str, Path] = {}

    def page(name: str) -> Path:
        if name not in made:
            made[name] = folder / f"{name}.html"
            qdebug.report(MAKERS[name](folder), output=made[name])
        return made[name]

    return page


def _run(folder: Path, model: str = "digits_cnn", **settings: Any) -> Path:
    run = folder / f"{len(list(folder.glob('*.h5')))}.h5"
    qdebug.compare(DATA / f"{model}.onnx", output=run, **GIVEN, **settings)
    return run


def _written(result: Any, file: Path) -> Path:
    """As --json writes it."""
    file.write_text(json.dumps(result.to_dict()), encoding="utf-8")
    return file


def _bisect(target: str) -> Callable[[Path], Any]:
    return lambda _: qdebug.bisect(MODEL, weights="per-tensor", target=target, **GIVEN)


MAKERS: dict[str, Callable[[Path], Any]] = {
    "compare": lambda folder: _run(folder, weights="per-tensor", metric="top1"),
    "fp16": lambda folder: _run(folder, "digits_encoder", precision="fp16"),
    "two runs": lambda folder: [
        _run(folder, weights=weights) for weights in ("per-tensor", "per-channel")
    ],
    "calibrate": lambda _: qdebug.calibrate(
        MODEL, calib_data=DATA / "digits_calib.npz", method="minmax,mse", samples=32
    ),
    "repair": lambda _: qdebug.repair(
        MODEL, weights="per-tensor", metric="top1", only="channel-scales", **CALIB, **GIVEN
    ),
    "bisect": _bisect("output.cosine>=0.99"),
    "long bisect": _bisect("output.sqnr_db>=45"),
    "sweep": lambda _: qdebug.sweep(MODEL, backend="onnxruntime", precision="int8,fp32", **GIVEN),
    "inspect": lambda folder: _written(qdebug.inspect(MODEL), folder / "inspect.json"),
}

ANSWERS = {
    "compare": ".facts",
    "two runs": "#totals table",
    "calibrate": "#calibration table",
    "repair": "#repair table",
    "bisect": "#bisect .chart",
    "sweep": "#sweep .chart",
    "inspect": "#inspect .figures",
}
"""What a reader came for, beside the sentence."""

BEYOND = """() => {
    const scrolls = e => e && (["auto", "scroll", "hidden", "clip"].includes(
        getComputedStyle(e).overflowX) || scrolls(e.parentElement));
    return [...document.querySelectorAll("#app *")].filter(e => {
        const { left, right, width, height } = e.getBoundingClientRect();
        return width && height && (right > innerWidth + 0.5 || left < -0.5)
            && !e.classList.contains("skip") && !scrolls(e.parentElement);
    }).map(e => e.outerHTML.slice(0, 120)); }"""

OUTSIDE = """() => [...document.querySelectorAll(".chart svg")].flatMap(svg => {
    const frame = svg.querySelector(".frame")?.getBoundingClientRect();
    const room = 1; // of the lines themselves
    const drawn = ".point, .series, .dots, .error-bar, .range-bar, .candidate-line";
    return [...svg.querySelectorAll(drawn)].map(mark => [mark, mark.getBoundingClientRect()])
        .filter(([, box]) => !frame
            || box.left < frame.left - room || box.right > frame.right + room
            || box.top < frame.top - room || box.bottom > frame.bottom + room)
        .map(([mark]) => `${mark.getAttribute("class")} in ${svg.ariaLabel}`); })"""

BROKEN_WORDS = """() => {
    const lines = node => { const range = document.createRange(); range.selectNodeContents(node);
        return new Set([...range.getClientRects()].map(r => Math.round(r.top))).size; };
    const texts = [...document.querySelectorAll("label, label > span, button, th, dt, h1, h2, h3")]
        .flatMap(e => [...e.childNodes]).filter(n => n.nodeType === 3 && n.data.trim());
    return texts.filter(n => lines(n) > n.data.trim().split(/[\\s/]+/).length
        || (n.parentElement.offsetParent && !lines(n))).map(n => n.data); }"""


@pytest.fixture(scope="module")
def screen(
    request: pytest.FixtureRequest, chromium: Any, page_of: Callable[[str], Path]
) -> Iterator[tuple[str, int, Watched]]:
    """A page on a screen: its name, the width, and the page, for tests that only look at it."""
    name, width = request.param
    with opened(chromium, page_of(name), width=width, height=SCREENS[width]) as watched:
        yield name, width, watched


def on_screens(names: Iterable[str]) -> pytest.MarkDecorator:
    """Each page on each screen, which is opened once for all tests."""
    each = list(product(names, SCREENS))
    ids = [f"{name}-{width}" for name, width in each]
    return pytest.mark.parametrize("screen", each, ids=ids, indirect=True, scope="module")


@on_screens(MAKERS)
def test_all_is_in_its_place(screen: tuple[str, int, Watched]) -> None:
    _, _, watched = screen
    watched.page.wait_for_timeout(300)
    assert watched.page.evaluate(BEYOND) == []
    assert watched.page.evaluate(OUTSIDE) == []
    assert watched.page.evaluate(BROKEN_WORDS) == []
    watched.quiet()


@on_screens(ANSWERS)
def test_the_answer_is_on_the_first_screen(screen: tuple[str, int, Watched]) -> None:
    """Whole on a laptop; on a phone the sentence, and where the rest begins."""
    name, width, watched = screen
    page = watched.page
    sentence = page.locator(".verdict").first.bounding_box()
    assert sentence["y"] + sentence["height"] <= SCREENS[width]
    answer = page.locator(ANSWERS[name]).first.bounding_box()
    if width > 390:
        assert answer["y"] + answer["height"] <= SCREENS[width]
    else:
        assert answer["y"] + min(200, answer["height"]) <= SCREENS[width]
    watched.quiet()


def test_a_narrow_table_shows_figures_beside_whole_names(
    chromium: Any, page_of: Callable[[str], Path]
) -> None:
    with opened(chromium, page_of("compare"), width=390, height=844) as watched:
        page = watched.page
        holder = page.locator("#layers .tabulator-tableholder")
        page.locator("#layers .tabulator-row").first.wait_for()
        page.wait_for_timeout(300)
        right = holder.evaluate("e => e.getBoundingClientRect().right")
        heads = page.locator("#layers .tabulator-col").all()
        seen = [h.get_attribute("tabulator-field") for h in heads if _right(h) <= right]
        assert seen[:3] == ["layer", "rank", "gain"]
        cut = "e => e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1"
        cells = page.locator("#layers .tabulator-row .cut-name").all()[:8]
        assert not any(cell.evaluate(cut) for cell in cells)
        assert page.locator("#layers .scroll-note").is_visible()
        holder.evaluate("e => e.scrollLeft = 200")
        first = page.locator("#layers .tabulator-row .tabulator-cell").first
        assert first.bounding_box()["x"] >= holder.bounding_box()["x"]
        watched.quiet()


def _right(locator: Any) -> float:
    found: float = locator.evaluate("e => e.getBoundingClientRect().right")
    return found


def test_no_line_crosses_what_was_not_measured(
    chromium: Any, page_of: Callable[[str], Path]
) -> None:
    with opened(chromium, page_of("compare")) as watched:
        page = watched.page
        result = page.evaluate("document.getElementById('app').page.data.runs[0].result")
        order = {tensor["name"]: k for k, tensor in enumerate(result["tensors"])}
        layers = sorted(result["layers"], key=lambda layer: order[layer["tensor"]])
        local = [layer["local_sqnr_db"] for layer in layers]
        assert None in local
        pieces = sum(v is not None and (not k or local[k - 1] is None) for k, v in enumerate(local))
        assert pieces > 1
        path = page.locator("#depth .series.g0").get_attribute("d")
        assert path.count("M") == pieces
        assert path.count("M") + path.count("L") == sum(v is not None for v in local)
        watched.quiet()


def test_what_has_no_error_is_drawn_at_the_edge(
    chromium: Any, page_of: Callable[[str], Path]
) -> None:
    with opened(chromium, page_of("fp16")) as watched:
        page = watched.page
        assert page.locator("#depth .point.hollow").count() > 3
        words = page.locator("#depth text").all_text_contents()
        assert ">90" in words and len(words) > 4
        watched.quiet()


def test_the_legend_has_the_figures_of_the_layer(
    chromium: Any, page_of: Callable[[str], Path]
) -> None:
    with opened(chromium, page_of("compare")) as watched:
        page = watched.page
        said = page.locator("#depth .legend b").all_inner_texts()
        assert len(said) == 3 and all(text.strip().endswith("dB") for text in said)
        name = page.locator("#depth .depth-layer").inner_text()
        assert name == page.locator("#card .layer-name").inner_text()
        page.locator("#depth").scroll_into_view_if_needed()
        box = page.locator("#depth .hit").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 40)
        page.wait_for_function(
            "name => document.querySelector('#depth .depth-layer').textContent !== name", arg=name
        )
        page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + 40)
        assert page.locator("#card .layer-name").inner_text() != name
        watched.quiet()


@pytest.mark.parametrize("width", SCREENS)
def test_a_long_list_says_that_it_goes_on(
    chromium: Any, page_of: Callable[[str], Path], width: int
) -> None:
    with opened(chromium, page_of("long bisect"), width=width, height=SCREENS[width]) as watched:
        page = watched.page
        slider = page.locator("#bisect input[type=range]")
        slider.evaluate("e => { e.value = e.max; e.dispatchEvent(new Event('input')); }")
        pins = page.locator("#bisect .pins")
        pins.wait_for()
        page.wait_for_timeout(200)
        goes_on = pins.evaluate("e => e.scrollHeight > e.clientHeight + 2")
        assert goes_on
        host = page.locator("#bisect .scroll-host", has=page.locator(".pins"))
        assert host.locator(".scroll-note").is_visible()
        shadows = host.locator(".scroll-shadows")
        assert "below" in shadows.get_attribute("class").split()
        pins.evaluate("e => e.scrollTop = e.scrollHeight")
        page.wait_for_function(
            "() => !document.querySelector('#bisect .pins').parentElement"
            ".querySelector('.scroll-shadows').classList.contains('below')"
        )
        watched.quiet()


@pytest.mark.parametrize("width", SCREENS)
def test_both_graphs_show_the_layer(
    chromium: Any, page_of: Callable[[str], Path], width: int
) -> None:
    """The layer that is selected at first lies within each canvas, whole and marked."""
    with opened(chromium, page_of("two runs"), width=width, height=SCREENS[width]) as watched:
        watched.page.wait_for_timeout(300)
        found = watched.page.evaluate(
            """() => document.getElementById("graph").view.peers.map(canvas => {
            const { view, focus } = canvas.shared.get(), { width, height } = canvas.size;
            const box = canvas.scene.boxes.find(b => b.item === canvas.own(focus));
            return box && [view.x + view.k * box.x >= 0, view.y + view.k * box.y >= 0,
                view.x + view.k * (box.x + box.w) <= width,
                view.y + view.k * (box.y + box.h) <= height]; })"""
        )
        assert found == [[True] * 4] * 2
        watched.quiet()
