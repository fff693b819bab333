"""A real browser on pages that qdebug wrote: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from patience import PATIENCE_S

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")


def missing() -> str:
    """Why there is no browser; "" where there is one."""
    if find_spec("playwright") is None:
        return "needs Playwright (pip install playwright)"
    return "" if _program() else "needs Chromium (apt-get install chromium)"


def _program() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=_program(), args=list(ARGUMENTS))
        yield chromium
        chromium.close()


@dataclass
class Watched:
    """A page in a browser, and what it should not have done.

    Attributes:
        faults: errors on the console and exceptions.
        requests: addresses that it asked for besides its own.
    """

    page: Any
    faults: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def quiet(self) -> None:
        """Fail if there was anything of that."""
        assert not self.faults, self.faults
        assert not self.requests, self.requests

    def settle(self) -> None:
        """Wait until tables are built and the page has nothing to do that draws anew: between the
        press and the release of a button, a table that is drawn anew takes no click."""
        self.page.evaluate(
            """async () => {
                const grids = [...document.querySelectorAll(".grid")].filter(g => g.clientWidth);
                await Promise.all(grids.map(grid => grid.ready));
                let changed = true;
                const watch = new MutationObserver(() => { changed = true; });
                watch.observe(document, { childList: true, subtree: true });
                while (changed) {
                    changed = false;
                    await new Promise(done => requestAnimationFrame(
                        () => requestAnimationFrame(() => requestIdleCallback(done))));
                }
                watch.disconnect();
            }"""
        )


@contextlib.contextmanager
def opened(
    chromium: Any, address: str | Path, *, width: int = 1400, height: int = 1000, dark: bool = False
) -> Iterator[Watched]:
    """A page, once the program in it has built everything."""
    url = address if isinstance(address, str) else address.absolute().as_uri()
    context = chromium.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        permissions=["clipboard-read", "clipboard-write"],
    )
    context.set_default_timeout(1000 * PATIENCE_S)
    try:
        watched = Watched(context.new_page())
        page = watched.page
        page.on("console", lambda m: m.type == "error" and watched.faults.append(m.text))
        page.on("pageerror", lambda error: watched.faults.append(str(error)))
        page.on("request", lambda r: _foreign(r.url, url) and watched.requests.append(r.url))
        page.goto(url)
        page.wait_for_function("performance.getEntriesByName('page-ready').length > 0")
        yield watched
    finally:
        context.close()


def _foreign(asked: str, page: str) -> bool:
    """Whether an address lies outside the page: blobs and data are within."""
    if asked.startswith(("blob:", "data:")):
        return False
    return not asked.startswith(page)


def axe_violations(page: Any) -> list[tuple[str, str, str]]:
    """What axe-core finds: impact, rule, and the first element."""
    import axe_playwright_python

    folder = Path(axe_playwright_python.__file__).parent
    page.evaluate(next(folder.rglob("axe.min.js")).read_text(encoding="utf-8"))
    found = page.evaluate("axe.run()")
    return [(v["impact"], v["id"], v["nodes"][0]["html"][:160]) for v in found["violations"]]
