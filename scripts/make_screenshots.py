"""Draw the picture of a page in the README: the report of the bundled CNN, in Chromium.

    .venv/bin/python scripts/make_screenshots.py

Look at the pictures before you commit them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests" / "helpers")]

from browser import browser, opened  # noqa: E402

CONFIG = "configs/digits_cnn_int8.yaml"  # named as seen from the repository
PICTURE = REPOSITORY / "docs" / "assets" / "report.png"
WIDTH = 1400


def main() -> None:
    """Make the page, and a picture of it from its top to the end of the graph."""
    with tempfile.TemporaryDirectory() as name, browser() as chromium:
        run, page = Path(name) / "run.h5", Path(name) / "run.html"
        for command in (["compare", "--config", CONFIG, "-o", str(run)], ["report", str(run)]):
            done = subprocess.run([sys.executable, "-m", "qdebug", *command], cwd=REPOSITORY)
            assert done.returncode in (0, 1), command
        with opened(chromium, page, width=WIDTH, height=1000) as watched:
            watched.page.wait_for_selector("#layers .tabulator-row")
            # Pictures of 8x8 digits would make this one three times as long.
            watched.page.evaluate("document.getElementById('samples').remove()")
            box = watched.page.locator("#graph").bounding_box()
            clip = {"x": 0, "y": 0, "width": WIDTH, "height": box["y"] + box["height"] + 10}
            watched.page.screenshot(path=PICTURE, full_page=True, clip=clip)
    print(f"wrote {PICTURE} ({PICTURE.stat().st_size // 1000} kB)")


if __name__ == "__main__":
    main()
