"""`qdebug view`."""

from __future__ import annotations

from contextlib import suppress

from qdebug import api
from qdebug.cli.process import output
from qdebug.commands.report.view import View
from qdebug.config.commands import Shown
from qdebug.config.view import ViewSettings


def run(settings: ViewSettings, shown: Shown) -> int:
    """Serve the page until the user interrupts."""
    with api.view(settings) as served:
        announce(served, settings.browser)
        with suppress(KeyboardInterrupt):
            served.wait()
    return 0


def announce(served: View, browser: bool) -> None:
    """Say where the page is, and how to end it."""
    print(f"Serving at {served.url}", file=output())
    missing = browser and not served.opened
    print(
        f"{'No browser was found: open that address. ' if missing else ''}Ctrl-C ends.",
        file=output(),
        flush=True,
    )
