"""Serves one page on this machine's own address, to whoever has the token in the URL.

A page on another site can make a browser ask this server: it does not know the token, and where it
gets its own name to lead here (DNS rebinding), the Host header gives it away.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from contextvars import copy_context
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from qdebug import __version__
from qdebug.errors import QdebugError, UsageError
from qdebug.page.data import TensorDetails
from qdebug.result import to_json
from qdebug.wording import option

ADDRESS = "127.0.0.1"
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class Status:
    """What the page asks for again and again.

    Attributes:
        version: another one means that the page shows something old.
        progress: what is being done; "" where nothing is.
    """

    version: str
    progress: str = ""


class ReplacedError(Exception):
    """The file is not the one that the page was made from."""


class Source(Protocol):
    """What is served. Its methods are called from several threads."""

    def html(self) -> str:
        """The page as it is now."""

    def status(self) -> Status:
        """The version of what the page would show now."""

    def detail(
        self, run: int, tensor: str, sample: int | None, channel: int | None, version: str
    ) -> TensorDetails | None:
        """Details of a tensor; None where there are none.

        Raises:
            ReplacedError: `version` is an old one.
            QdebugError: the file is damaged.
        """


class PageServer:
    """Serves a source from construction to `close`.

    Attributes:
        url: the address of the page, with its token.
    """

    def __init__(self, source: Source, port: int) -> None:
        """`port` 0 takes any that is free.

        Raises:
            UsageError: the port is in use, or not to be had.
        """
        token = secrets.token_urlsafe(24)
        handler = type("_Handler", (_Handler,), {"source": source, "token": token})
        try:
            self._server = _Server((ADDRESS, port), handler)
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else "no port has that number"
            raise UsageError(
                f"{option('port', str(port))}: {why}",
                f"Give another port, or {option('port', '0')} for any that is free.",
                code="QD-USAGE-PORT",
            ) from error
        self.url = f"http://{ADDRESS}:{self._server.server_port}/{token}/"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving; may be called again."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    """Answers in the context of whoever opened it: see wording.spelled_by."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._context = copy_context()
        super().__init__(*arguments)

    def process_request_thread(self, *arguments: Any) -> None:
        """See socketserver.ThreadingMixIn."""
        self._context.copy().run(super().process_request_thread, *arguments)


class _RefusedError(Exception):
    """The request is answered with a status and a few words."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    """One request. Three addresses exist: the page, `detail` and `status`, all below the token."""

    source: Source
    token: str
    server_version = f"qdebug/{__version__}"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        """Answer, or say in a few words why not."""
        status, kind = HTTPStatus.OK, "application/json"
        try:
            found = self._answer()
            text = found if isinstance(found, str) else json.dumps(found, allow_nan=False)
            kind = "text/html" if isinstance(found, str) else kind
        except (_RefusedError, ReplacedError, QdebugError) as error:
            status, kind, text = HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", str(error)
            if isinstance(error, ReplacedError):
                status, text = HTTPStatus.CONFLICT, "The run file was replaced meanwhile."
            status = error.status if isinstance(error, _RefusedError) else status
        body = text.encode("utf-8", "replace")  # names in a file may be no text
        with contextlib.suppress(ConnectionError):  # the reader went away
            self.send_response(status)
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def _answer(self) -> Any:
        """The page, or what is sent as JSON."""
        port = self.connection.getsockname()[1]
        if self.headers.get("Host", "") not in (f"{ADDRESS}:{port}", f"localhost:{port}"):
            raise _RefusedError(HTTPStatus.FORBIDDEN, "This address serves another host.")
        try:
            url = urlsplit(self.path)
            token, _, name = url.path.removeprefix("/").partition("/")
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            numbers = {k: int(query[k]) for k in ("run", "sample", "channel") if k in query}
        except ValueError as error:  # of a whole address, whose host cannot be one
            raise _RefusedError(HTTPStatus.BAD_REQUEST, _UNKNOWN) from error
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            why = "The token in the address is not the one that qdebug view printed."
            raise _RefusedError(HTTPStatus.FORBIDDEN, why)
        if name == "":
            return self.source.html()
        if name == "status":
            return to_json(self.source.status())
        if name != "detail":
            raise _RefusedError(HTTPStatus.NOT_FOUND, "There is no such page.")
        if "tensor" not in query or min(numbers.values(), default=0) < 0:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, _UNKNOWN)
        run, sample, channel = (numbers.get(key) for key in ("run", "sample", "channel"))
        version = query.get("version", "")
        found = self.source.detail(run or 0, query["tensor"], sample, channel, version)
        if found is None:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "There are no details of this tensor.")
        return to_json(found)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: addresses hold the token."""


_UNKNOWN = "The request is not understood."
