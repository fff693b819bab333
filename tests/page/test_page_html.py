"""The file: any text survives in it, none becomes markup, and only its own program may run."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdebug.page.data import Network, Node, PageData, RunData, TensorDetails
from qdebug.page.html import Assets, json_in_html, packed, page_html, policy

USED = Assets("let one = 1;", "body { margin: 0 }")
HOSTILE = [
    "</script><script>alert(1)</script>",
    '"onload="alert(1)',
    "<!-- <script>",
    "]]>",
    "a\nb\u2028c\u2029\r\td",
    "‮gnp.exe",
    "x" * 300,
    "&lt;&amp;",
    "\x00\x1f\x7f",
]


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the texts of scripts by id."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self._id: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._id = dict(attrs).get("id") or "" if tag == "script" else None

    def handle_endtag(self, tag: str) -> None:
        self._id = None

    def handle_data(self, data: str) -> None:
        if self._id is not None:
            self.scripts[self._id] = self.scripts.get(self._id, "") + data


def run_called(name: str) -> RunData:
    node = Node(name, "Conv", (name,), (), (name,))
    return RunData(name, "compare", name, {"name": name}, Network((node,), (name,), (name,), ((),)))


def parsed(text: str) -> Elements:
    elements = Elements()
    elements.feed(text)
    elements.close()
    return elements


@given(st.text())
def test_any_text_survives_json_in_html(text: str) -> None:
    written = json_in_html({"name": text, text: [text]})
    assert json.loads(written) == {"name": text, text: [text]}
    assert not set("<>&") & set(written)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_data(name: str) -> None:
    plain = page_html(PageData("t", "1", "now", (run_called("plain"),)), [["AA=="]], USED)
    text = page_html(PageData(name, "1", "now", (run_called(name),)), [["AA=="]], USED)
    elements = parsed(text)
    assert [tag for tag, _ in elements.found] == [tag for tag, _ in parsed(plain).found]
    assert all(not key.startswith("on") for _, attrs in elements.found for key in attrs)
    data = json.loads(elements.scripts["page-data"])
    assert data["runs"][0]["network"]["nodes"][0]["name"] == name
    assert data["title"] == name


def test_the_policy_lets_only_the_own_program_run() -> None:
    text = page_html(PageData("t", "1", "now", (run_called("n"),)), [[]], USED)
    (content,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    rules = dict(rule.split(" ", 1) for rule in content.split("; "))
    assert rules["default-src"] == "'none'"
    digest = base64.b64encode(hashlib.sha256(USED.script.encode()).digest()).decode()
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert "connect-src" not in rules and "unsafe" not in content
    assert f"<script>{USED.script}</script>" in text and f"<style>{USED.style}</style>" in text
    assert "connect-src 'self'" in policy(USED, served=True)


def details_of(name: str) -> TensorDetails:
    return TensorDetails(name, 0, (), None, None, None, None)


def unpacked(block: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(block)))
    return found


def test_every_tensor_is_in_the_block_that_is_said() -> None:
    names = [*HOSTILE, *(f"tensor {k}" for k in range(3000))]
    chunks = packed(map(details_of, names), names, 10**9)
    assert len(chunks.blocks) > 1 and not chunks.left_out
    blocks = [unpacked(block) for block in chunks.blocks]
    for name, number in chunks.where.items():
        assert blocks[number][name]["name"] == name
    assert list(chunks.where) == names


def test_what_has_no_room_is_left_out_and_not_even_made() -> None:
    names = [f"tensor {k}" for k in range(20_000)]
    made = 0

    def details() -> Any:
        nonlocal made
        for name in names:
            made += 1
            yield details_of(name)

    whole = packed(map(details_of, names), names, 10**9)
    room = sum(map(len, whole.blocks[:3]))
    chunks = packed(details(), names, room)
    assert chunks.blocks == whole.blocks[:3]
    assert chunks.left_out == tuple(n for n in names if whole.where[n] > 2)
    assert made < 0.5 * len(names)
