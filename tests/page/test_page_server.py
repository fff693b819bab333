"""The server of `qdebug view`: who may read what, and what it answers."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from patience import PATIENCE_S

from qdebug.errors import StoreError, UsageError
from qdebug.page.data import TensorDetails
from qdebug.page.server import PageServer, ReplacedError, Status

DETAILS = TensorDetails("a/../b", 1, (3,), None, None, None, None)


class Fake:
    """A source that notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str, int | None, int | None]] = []
        self.name = ""
        self.together = threading.Barrier(2, timeout=PATIENCE_S)

    def html(self) -> str:
        return f"<!DOCTYPE html><title>page</title>{self.name}"

    def status(self) -> Status:
        self.together.wait()  # fails unless two are answered at once
        return Status("2", "half way")

    def detail(
        self, run: int, tensor: str, sample: int | None, channel: int | None, version: str
    ) -> TensorDetails | None:
        if version != "2":
            raise ReplacedError
        if tensor == "damaged":
            raise StoreError("run.h5: damaged", code="QD-STORE-DAMAGED")
        self.asked.append((run, tensor, sample, channel))
        return DETAILS if tensor == DETAILS.name else None


@pytest.fixture
def served() -> Iterator[tuple[PageServer, Fake]]:
    source = Fake()
    server = PageServer(source, 0)
    yield server, source
    server.close()


def _get(
    server: PageServer, path: str, *, host: str | None = None, method: str = "GET"
) -> tuple[int, str, dict[str, str]]:
    url = urlsplit(server.url)
    assert url.hostname == "127.0.0.1"
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=PATIENCE_S)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), dict(answer.getheaders())
    connection.close()
    return found


def _token(server: PageServer) -> str:
    return urlsplit(server.url).path


def test_the_page(served: tuple[PageServer, Fake]) -> None:
    server, _ = served
    status, text, headers = _get(server, _token(server))
    assert status == 200 and "<title>page" in text
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Referrer-Policy"] == "no-referrer" and headers["Cache-Control"] == "no-store"


def test_a_name_that_is_no_text(served: tuple[PageServer, Fake]) -> None:
    server, source = served
    source.name = "\ud800"
    status, text, _ = _get(server, _token(server))
    assert status == 200 and text.endswith("?")


@pytest.mark.parametrize("path", ["/", "/wrong/", "/wrong/detail?run=0&tensor=x", "/%00/", "//"])
def test_a_wrong_token_is_refused(served: tuple[PageServer, Fake], path: str) -> None:
    server, source = served
    assert _get(server, path)[0] == 403
    assert _get(server, _token(server)[:-2] + "/")[0] == 403
    assert not source.asked


def test_another_host_is_refused(served: tuple[PageServer, Fake]) -> None:
    server, _ = served
    port = urlsplit(server.url).port
    assert _get(server, _token(server), host=f"evil.example:{port}")[0] == 403
    assert _get(server, _token(server), host="127.0.0.1")[0] == 403
    assert _get(server, _token(server), host=f"localhost:{port}")[0] == 200


@pytest.mark.parametrize("path", ["../../etc/passwd", "..%2f..%2fetc%2fpasswd", "page.js", "//"])
def test_there_are_no_files(served: tuple[PageServer, Fake], path: str) -> None:
    server, _ = served
    assert _get(server, _token(server) + path)[0] == 404


def test_an_address_that_is_none_is_refused(
    served: tuple[PageServer, Fake], capfd: pytest.CaptureFixture[str]
) -> None:
    server, _ = served
    url = urlsplit(server.url)
    with socket.create_connection((url.hostname, url.port), timeout=PATIENCE_S) as connection:
        connection.sendall(f"GET http://[::1/x HTTP/1.0\r\nHost: {url.netloc}\r\n\r\n".encode())
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.0 400 ")
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_written(served: tuple[PageServer, Fake], method: str) -> None:
    server, _ = served
    assert _get(server, _token(server), method=method)[0] == 501


def test_details(served: tuple[PageServer, Fake]) -> None:
    server, source = served
    base = _token(server) + "detail?version=2"
    status, text, _ = _get(server, f"{base}&run=1&tensor=a%2F..%2Fb&sample=3")
    assert status == 200 and json.loads(text)["kept"] == [3]
    assert source.asked == [(1, "a/../b", 3, None)]
    assert _get(server, f"{base}&tensor=unknown")[0] == 404
    assert _get(server, f"{base}&tensor=damaged")[:2] == (
        500,
        "run.h5: damaged [QD-STORE-DAMAGED]",
    )
    assert _get(server, base)[0] == 400
    assert _get(server, f"{base}&tensor=x&sample=-1")[0] == 400
    assert _get(server, f"{base}&tensor=x&channel=a")[0] == 400


def test_a_replaced_file_is_said(served: tuple[PageServer, Fake]) -> None:
    server, _ = served
    assert _get(server, _token(server) + "detail?version=1&tensor=x")[0] == 409


def test_two_readers_at_once(served: tuple[PageServer, Fake]) -> None:
    server, _ = served
    answers: list[tuple[int, str, dict[str, str]]] = []
    readers = [
        threading.Thread(target=lambda: answers.append(_get(server, _token(server) + "status")))
        for _ in range(2)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert [json.loads(text) for _, text, _ in answers] == [
        {"version": "2", "progress": "half way"}
    ] * 2


def test_a_port_in_use(served: tuple[PageServer, Fake]) -> None:
    server, source = served
    with pytest.raises(UsageError) as caught:
        PageServer(source, urlsplit(server.url).port or 0)
    assert caught.value.code == "QD-USAGE-PORT"


def test_a_port_that_does_not_exist() -> None:
    with pytest.raises(UsageError) as caught:
        PageServer(Fake(), 80_000)
    assert caught.value.code == "QD-USAGE-PORT"
