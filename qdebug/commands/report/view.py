"""`qdebug view`, whole: open what is to be shown, serve it, open a browser on it."""

from __future__ import annotations

import html
import os
import sys
import threading
import webbrowser
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from qdebug.commands.report.sources import Source, joined, of_engine, of_json, of_result, of_run
from qdebug.config.report import ViewSettings
from qdebug.display.progress import LABELS
from qdebug.errors import StoreError
from qdebug.inmemory import InMemory
from qdebug.inputfiles import open_file
from qdebug.outputfiles import being_written
from qdebug.page.data import PageData, RunData, TensorDetails
from qdebug.page.html import assets, page_html
from qdebug.page.server import PageServer, ReplacedError, Status
from qdebug.results.recorded import is_run
from qdebug.store.reader import RunReader
from qdebug.types import Progress
from qdebug.wording import option


class LivePage:
    """Serves results (see page.server.Source). May be used from several threads."""

    def __init__(self, files: Sequence[str], model: str | None, *, awaited: bool = False) -> None:
        """Open the files.

        Args:
            files: run files, the JSON of results, models, or what inspect reads.
            model: the network, for a file that does not hold it.
            awaited: the first is a run file that this process writes.

        Raises:
            QdebugError: one cannot be read.
        """
        self._files = tuple(files)
        self._model = model
        self._awaited = awaited
        self._lock = threading.RLock()
        self._stack = ExitStack()
        self._version = ""
        self._sources: tuple[Source, ...] = ()
        self._progress = ""
        self._refresh()

    def close(self) -> None:
        """Close the files; may be called again."""
        with self._lock:
            self._stack.close()
            self._version = ""

    def show_progress(self, progress: Progress) -> None:
        """A progress callback: what the page says while a run is written."""
        done = f"{progress.done} of {progress.total}" if progress.total else f"{progress.done}"
        self._progress = f"{LABELS.get(progress.stage, progress.stage)}: {done}"

    def html(self) -> str:
        """See page.server.Source.

        Raises:
            QdebugError: a file was replaced by one that cannot be read.
        """
        with self._lock:
            self._refresh()
            runs = tuple(source.data for source in self._sources)
            page = PageData.now(runs, served=True, version=self._version)
            return page_html(page, [() for _ in runs], assets())

    def status(self) -> Status:
        """See page.server.Source."""
        unfinished = any(source.data.unfinished for source in self._sources)
        return Status(self._state(), self._progress if unfinished else "")

    def detail(
        self, run: int, tensor: str, sample: int | None, channel: int | None, version: str
    ) -> TensorDetails | None:
        """See page.server.Source.

        Raises:
            ReplacedError: `version` is an old one.
            StoreError: the file is damaged.
        """
        with self._lock:
            if version != self._state():
                raise ReplacedError
            self._refresh()
            kept = self._sources[run].kept if run < len(self._sources) else None
            if kept is None or tensor not in kept.names:
                return None
            return kept.details(tensor, sample=sample, channel=channel)

    def _state(self) -> str:
        """Changes when a file does."""
        return " ".join(_state_of(file) for file in self._files)

    def _refresh(self) -> None:
        state = self._state()
        if state == self._version:
            return
        stack = ExitStack()
        try:
            sources = tuple(self._opened(stack, file, more) for file, more in joined(self._files))
        except BaseException:
            stack.close()
            raise
        self._stack.close()
        self._stack, self._sources, self._version = stack, sources, state

    def _opened(self, stack: ExitStack, file: str, more: Mapping[str, Any]) -> Source:
        if isinstance(file, InMemory):
            return of_result(file.value, self._model)
        if is_run(file):
            if not Path(file).exists() and (self._awaited or being_written(file)):
                return Source(_unfinished(file))
            return of_run(stack.enter_context(RunReader(file)), self._model)
        if file.endswith(".json") and _is_result(file):
            return of_json(file, self._model)
        return of_engine(file, more, self._model)


def _unfinished(file: str) -> RunData:
    """A run of which nothing can be read before it is whole."""
    return RunData(
        label=Path(file).name,
        kind="compare",
        headline="The comparison is still running; this page shows it when it is done.",
        result=None,
        network=None,
        unfinished=True,
    )


def _is_result(file: str) -> bool:
    """Whether a JSON file is a result, not the layers of an engine."""
    try:
        with open_file(file) as opened:
            return b'"qdebug.' in opened.read(200)
    except OSError as error:
        raise StoreError(
            f"{file}: cannot be read: {error.strerror}",
            f"Give a run file of compare, written with {option('output', 'run.h5')}.",
            code="QD-STORE-NOT-FOUND",
        ) from error


def _state_of(file: str) -> str:
    """Changes when a file is replaced or written to."""
    if isinstance(file, InMemory):
        return "in memory"
    try:
        found = Path(file).stat()
    except OSError:
        return "absent"
    return f"{found.st_ino}:{found.st_mtime_ns}:{found.st_size}"


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
