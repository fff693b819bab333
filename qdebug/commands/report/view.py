"""`qdebug view`, whole: open what is to be shown, serve it, open a browser on it."""

from __future__ import annotations

import html
import os
import sys
import threading
import webbrowser
from contextlib import AbstractContextManager

from qdebug.commands.report.live import LivePage
from qdebug.config.view import ViewSettings
from qdebug.page.server import PageServer


class View(AbstractContextManager["View"]):
    """A page that is being served, until it is closed. A context manager.

    Attributes:
        url: the address, with the token that it is not served without.
        opened: whether a browser was opened on it.
    """

    def __init__(self, page: LivePage, port: int, browser: bool) -> None:
        """Serve `page` at `port`, 0 for any that is free.

        Raises:
            UsageError: the port is in use, or not to be had.
        """
        self._page = page
        self._server = PageServer(page, port)
        self.url = self._server.url
        self.opened = browser and _open(self.url)

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<View {self.url}>"

    def _repr_html_(self) -> str:
        """A link to the page."""
        address = html.escape(self.url)
        return f'<a href="{address}" target="_blank" rel="noopener">{address}</a>'

    def close(self) -> None:
        """Stop serving; may be called again."""
        self._server.close()
        self._page.close()

    @staticmethod
    def wait() -> None:
        """Serve until the program is interrupted.

        Raises:
            KeyboardInterrupt: it was.
        """
        threading.Event().wait()


def view(settings: ViewSettings) -> View:
    """Serve a page of what `settings` name.

    Raises:
        UsageError: the port is in use, or a file holds no result.
        QdebugError: a file that cannot be read.
    """
    page = LivePage(settings.files, settings.model)
    try:
        return View(page, settings.port, settings.browser)
    except BaseException:
        page.close()
        raise


def _open(url: str) -> bool:
    """Open a browser with a window; one in a terminal would take that over."""
    if sys.platform.startswith("linux") and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    ):
        return False
    try:
        return webbrowser.open(url)
    except webbrowser.Error:
        return False
