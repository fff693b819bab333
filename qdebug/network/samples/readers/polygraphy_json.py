"""Polygraphy's saved inputs: JSON files with a feed or a list of them, the arrays encoded."""

from __future__ import annotations

import base64
import binascii
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qdebug.errors import SampleError
from qdebug.inputfiles import open_file
from qdebug.network.samples.feed_files import files_in
from qdebug.network.samples.readers.npy import read_header
from qdebug.network.samples.samples import Source
from qdebug.types import Array, Feeds, TensorSpec

CHUNK_BYTES = 1 << 20
_STRUCTURE = re.compile(rb'["\\{}\[\]]')
_LEGACY_MARKER = "__polygraphy_encoded_ndarray"


def read_file(path: Path, _: Sequence[TensorSpec]) -> Source:
    """The feeds of a file.

    Raises:
        SampleError: not JSON, cut off, or not an object or a list of objects.
    """
    return _opened([path])


def read_folder(path: Path, _: Sequence[TensorSpec]) -> Source | None:
    """The feeds of all files, in order. Raises as `read_file`."""
    files = files_in(path, ".json")
    return _opened(files) if files else None


def _opened(files: Sequence[Path]) -> JsonFeeds:
    return JsonFeeds([span for file in files for span in _find_feeds(file)])


@dataclass(frozen=True)
class _Span:
    """Where one feed's JSON object lies in a file."""

    path: Path
    start: int
    stop: int


class JsonFeeds:
    """Feeds in order, each decoded when it is read."""

    def __init__(self, spans: list[_Span]) -> None:
        self._spans = spans

    def read(self, index: int) -> Feeds | None:
        """Feed `index`, decoded.

        Raises:
            SampleError: it does not hold encoded numpy arrays.
        """
        if index >= len(self._spans):
            return None
        span = self._spans[index]
        with open_file(span.path) as file:
            file.seek(span.start)
            text = file.read(span.stop - span.start)
        try:
            feed = json.loads(text)
        except ValueError as error:
            raise SampleError(
                f"{self.where(index)}: not valid JSON ({error}).",
                "Save the inputs again.",
                code="QD-SAMPLES-DAMAGED",
            ) from error
        return {name: _decode(value, name, self.where(index)) for name, value in feed.items()}

    def where(self, index: int) -> str:
        """The file and the number of the feed."""
        return f"{self._spans[index].path}: item {index}"


def _find_feeds(path: Path) -> Iterator[_Span]:
    """The outermost objects of a file, or of the list it holds.

    Raises:
        SampleError: the file is not JSON, or cut off.
    """
    depth = start = base = 0
    for offset, mark in _structure(path):
        if mark in b"{[":
            if depth == 0:
                base = 1 if mark == b"[" else 0
            if depth == base and mark == b"{":
                start = offset
            depth += 1
        else:
            depth -= 1
            if depth == base and mark == b"}":
                yield _Span(path, start, offset + 1)
    if depth != 0:
        raise SampleError(
            f"{path}: not valid JSON, or cut off.",
            "Save the inputs again.",
            code="QD-SAMPLES-DAMAGED",
        )


def _structure(path: Path) -> Iterator[tuple[int, bytes]]:
    """Offsets of the brackets and braces that are not inside a string."""
    in_string = False
    escaped = -1
    with open_file(path) as file:
        base = 0
        while chunk := file.read(CHUNK_BYTES):
            for match in _STRUCTURE.finditer(chunk):
                offset, mark = base + match.start(), match.group()
                if offset == escaped:
                    continue
                if mark == b"\\":
                    escaped = offset + 1
                elif mark == b'"':
                    in_string = not in_string
                elif not in_string:
                    yield offset, mark
            base += len(chunk)


def _decode(value: Any, name: str, where: str) -> Array:
    is_array = isinstance(value, dict) and (
        value.get("polygraphy_class") == "ndarray" or _LEGACY_MARKER in value
    )
    if not is_array:
        raise SampleError(
            f"{where}: '{name}' is not an encoded numpy array; this is not Polygraphy's inputs.",
            "Write it with `polygraphy run --save-inputs`, or save an .npz.",
            code="QD-SAMPLES-FORMAT",
        )
    try:
        data = base64.b64decode(value["array"], validate=True)
        read_header(io.BytesIO(data), f"{where}: '{name}'")
        array: Array = np.load(io.BytesIO(data), allow_pickle=False)
    except (KeyError, TypeError, ValueError, EOFError, binascii.Error) as error:
        raise SampleError(
            f"{where}: '{name}' cannot be decoded ({error}).",
            "Save the inputs again.",
            code="QD-SAMPLES-DAMAGED",
        ) from error
    return array
