"""A page as one HTML file that needs nothing else: program, style and data stand in it.

Names come from the user's model and may be anything. They get into the file in three ways only: as
JSON whose markup is escaped, as base64, and as text through html.escape. A Content-Security-Policy
lets no other program run than the one that the file was written with, and nothing be requested.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files

from qdebug.page.data import PageData, TensorDetails
from qdebug.result import to_json

DETAILS_BYTES = 8_000_000
"""What the details of all runs of a page may take."""
_CHUNK_BYTES = 160_000
"""Of JSON, which is about a third of that when it is packed."""

_ESCAPED = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}  # json.dumps escapes all beyond ASCII


@dataclass(frozen=True)
class Assets:
    """The program of the page, and its style."""

    script: str
    style: str


@cache
def assets() -> Assets:
    """What scripts/page builds."""
    folder = files("qdebug.page") / "assets"
    return Assets(
        (folder / "page.js").read_text(encoding="utf-8"),
        (folder / "page.css").read_text(encoding="utf-8"),
    )


def json_in_html(value: object) -> str:
    """JSON that can stand in a script element: no text in it can end that."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).translate(_ESCAPED)


def policy(used: Assets, *, served: bool = False) -> str:
    """The Content-Security-Policy of a page; a served one may ask its own server."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(used.script)}",
            f"style-src {_hash(used.style)}",
            "img-src data: blob:",
            "media-src data:",
            "worker-src blob:",
            *(["connect-src 'self'"] if served else []),
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


@dataclass(frozen=True)
class Chunks:
    """Packed details of one run.

    Attributes:
        blocks: gzip of a JSON object of TensorDetails by tensor, as base64.
        where: the number of the block with each tensor.
        left_out: tensors that there was no room for.
    """

    blocks: tuple[str, ...]
    where: Mapping[str, int]
    left_out: tuple[str, ...]


def packed(details: Iterable[TensorDetails], names: Sequence[str], room: int) -> Chunks:
    """Details in blocks, as many as there is room for.

    Args:
        details: in the order of their importance; made one at a time, and no more than fit.
        names: those of all of them.
        room: bytes that the blocks may take.
    """
    blocks: list[str] = []
    where: dict[str, int] = {}
    for texts in _batches(details):
        block = _block(texts)
        if sum(map(len, blocks)) + len(block) > room:
            break
        where |= dict.fromkeys(texts, len(blocks))
        blocks.append(block)
    return Chunks(tuple(blocks), where, tuple(n for n in names if n not in where))


def _batches(details: Iterable[TensorDetails]) -> Iterator[dict[str, str]]:
    """JSON by tensor, of about _CHUNK_BYTES at once."""
    texts: dict[str, str] = {}
    for found in details:
        # Thousands of numbers, all finite: to_json would look at each.
        texts[found.name] = json.dumps(found, allow_nan=False, default=vars)
        if sum(map(len, texts.values())) >= _CHUNK_BYTES:
            yield texts
            texts = {}
    if texts:
        yield texts


def _block(texts: Mapping[str, str]) -> str:
    members = ",".join(f"{json.dumps(name)}:{text}" for name, text in texts.items())
    return base64.b64encode(gzip.compress(f"{{{members}}}".encode(), 6, mtime=0)).decode()


def page_html(data: PageData, blocks: Sequence[Sequence[str]], used: Assets) -> str:
    """The file.

    Args:
        data: of the page.
        blocks: packed details of each run.
        used: program and style.
    """
    return "".join(_parts(data, blocks, used))


def _parts(data: PageData, blocks: Sequence[Sequence[str]], used: Assets) -> Iterator[str]:
    yield (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" '
        f'content="{policy(used, served=data.served)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(data.title)}</title>\n<style>{used.style}</style>\n</head>\n<body>\n"
        '<div id="app"></div>\n<noscript>\n'
    )
    for run in data.runs:
        yield f"<p>{escape(run.label)}: {escape(run.headline)}</p>\n"
    yield (
        "<p>The rest of this page is drawn by a program in it: allow JavaScript for this file. It "
        "requests nothing from any server.</p>\n</noscript>\n"
        f'<script type="application/json" id="page-data">{json_in_html(to_json(data))}</script>\n'
    )
    for run_number, of_run in enumerate(blocks):
        for number, block in enumerate(of_run):
            yield f'<script type="text/plain" id="details-{run_number}-{number}">{block}</script>\n'
    yield f"<script>{used.script}</script>\n</body>\n</html>\n"
