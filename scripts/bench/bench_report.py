"""What a page costs: its size, how soon it is there, and how smoothly its graph moves.

For each network: a comparison is written into a run file and the page made of it; Chromium
(headless, drawing in software) opens it three times. Told are the seconds that the page took to be
made, its size without and with its data, the median time to the first paint and until every section
stands, and frames per second while the whole network, opened in all blocks, is moved at three
scales; the display draws at most 60.

    python scripts/bench/bench_report.py [--nets digits_cnn chain-300 chain-2000]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from common import add_networks, network, parser_of
from nets import Builder

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from browser import browser, missing, opened  # noqa: E402

import qdebug  # noqa: E402
from qdebug.page.html import assets  # noqa: E402

WIDTH = 16
DEFAULT = ("digits_cnn", "digits_encoder", "chain-300", "chain-2000")
HEAD = (
    "Network",
    "Nodes",
    "Made in",
    "Program",
    "Page",
    "First paint",
    "All there",
    "Frames/s: all",
    "at 0.4",
    "at 1",
)
MOVE = """async ([scale, seconds]) => {
    const graph = document.getElementById("graph").view, shared = graph.shared;
    if (shared.get().open.size < graph.tree.groups.size)
        shared.set({ open: new Set(graph.tree.groups.keys()) });
    graph.fit();
    const k = scale ?? shared.get().view.k;
    const frame = () => new Promise(requestAnimationFrame);
    await frame();
    const started = performance.now();
    let frames = 0;
    while (performance.now() - started < 1000 * seconds) {
        const { x, y } = shared.get().view;
        shared.set({ view: { k: k * (1 + 0.02 * Math.sin(frames / 9)), x: x - 3, y: y - 4 } });
        await frame();
        frames += 1;
    }
    return frames / seconds;
}"""


def main() -> None:
    """Print the table."""
    parser = parser_of(__doc__, rounds=3)
    add_networks(parser, DEFAULT)
    arguments = parser.parse_args()
    if why := missing():
        sys.exit(f"bench_report {why}")
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    with tempfile.TemporaryDirectory() as name, browser() as chromium:
        folder = Path(name)
        for net in arguments.nets:
            if net.startswith("chain-"):
                model, samples = _chain(int(net.removeprefix("chain-")), folder)
            else:
                model, samples = network(net, arguments.inputs, 16, folder)
            row = _row(chromium, model, samples, folder, arguments.rounds)
            print(f"| {net} | {' | '.join(row)} |", flush=True)


def _chain(count: int, folder: Path) -> tuple[Path, Path]:
    """Blocks of ten, each a product, an addition and a Tanh, with a shortcut around each block."""
    made = Builder(0)
    x = "input"
    for k in range(count // 3):
        if k % 10 == 0:
            start = x
        x = made.node("Tanh", [made.linear(x, WIDTH, WIDTH)])
        if k % 10 == 9:
            x = made.node("Add", [x, start])
    path, data = folder / f"chain-{count}.onnx", folder / "chain.npz"
    onnx.save(made.model(["N", WIDTH], x, ["N", WIDTH]), path)
    rng = np.random.default_rng(1)
    np.savez(data, input=rng.standard_normal((8, WIDTH)).astype(np.float32))
    return path, data


def _row(chromium: Any, model: Path, samples: Path, folder: Path, rounds: int) -> list[str]:
    run, page = folder / "run.h5", folder / "page.html"
    qdebug.compare(model, inputs=samples, samples=8, effect="none", output=run, force=True)
    started = time.perf_counter()
    qdebug.report(run, output=page, force=True)
    made = time.perf_counter() - started
    program = len(assets().script.encode()) + len(assets().style.encode())
    paints, whole = [], []
    frames: list[float] = []
    for _ in range(rounds):
        with opened(chromium, page) as watched:
            watched.page.wait_for_timeout(300)
            painted, ready = watched.page.evaluate(
                "() => [performance.getEntriesByName('first-contentful-paint')[0].startTime,"
                " performance.getEntriesByName('page-ready')[0].startTime]"
            )
            paints.append(painted)
            whole.append(ready)
            if not frames:
                nodes = watched.page.evaluate(
                    "document.getElementById('graph').view.run.network.nodes.length"
                )
                frames = [watched.page.evaluate(MOVE, [k, 2.0]) for k in (None, 0.4, 1.0)]
    return [
        str(nodes),
        f"{made:.1f} s",
        f"{program / 1e6:.2f} MB",
        f"{page.stat().st_size / 1e6:.2f} MB",
        f"{statistics.median(paints):.0f} ms",
        f"{statistics.median(whole):.0f} ms",
        *(f"{rate:.0f}" for rate in frames),
    ]


if __name__ == "__main__":
    main()
