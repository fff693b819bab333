"""Polygraphy's saved inputs: JSON files with a feed or a list of them, the arrays encoded."""

from __future__ import annotations

import base64
import io
import json
import mmap
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qdebug.errors import SampleError
from qdebug.inputfiles import open_file
from qdebug.network.samples.damage import reading
from qdebug.network.samples.feed_files import FeedFiles, files_in
from qdebug.network.samples.readers.npy import read_header
from qdebug.network.samples.samples import Source
from qdebug.types import Array, Feeds, TensorSpec

_MARK = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\]]', re.DOTALL)
"""A string, or a bracket outside of one."""
_LEGACY_MARKER = "__polygraphy_encoded_ndarray"
_REPAIR = "Write it with `polygraphy run --save-inputs`, or save an .npz."


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


def _opened(files: Sequence[Path]) -> FeedFiles[tuple[Path, int, int]]:
    spans = [(file, *span) for file in files for span in _find_feeds(file)]
    return FeedFiles(spans, _feed, lambda span: f"{span[0]}: from byte {span[1]}")


def _find_feeds(path: Path) -> Iterator[tuple[int, int]]:
    """Where the outermost objects of a file, or of the list it holds, begin and end.

    Raises:
        SampleError: the file is not JSON, or cut off.
    """
    with reading(path, _REPAIR), open_file(path) as file:
        if not path.stat().st_size:
            return
        depth = start = base = 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            for mark in _MARK.finditer(text):
                if mark[0] in b"{[":
                    base = int(mark[0] == b"[") if depth == 0 else base
                    start = mark.start() if depth == base else start
                    depth += 1
                elif mark[0] in b"}]":
                    depth -= 1
                    if depth == base and mark[0] == b"}":
                        yield start, mark.end()
        if depth:
            raise ValueError("its brackets do not close")


def _feed(span: tuple[Path, int, int]) -> Feeds:
    path, start, stop = span
    where = f"{path}: from byte {start}"
    with reading(where, _REPAIR), open_file(path) as file:
        file.seek(start)
        feed = json.loads(file.read(stop - start))
    return {name: _decoded(value, f"{where}: '{name}'") for name, value in feed.items()}


def _decoded(value: Any, where: str) -> Array:
    is_array = isinstance(value, dict) and (
        value.get("polygraphy_class") == "ndarray" or _LEGACY_MARKER in value
    )
    if not is_array:
        raise SampleError(
            f"{where} is not an encoded numpy array; this is not Polygraphy's inputs.",
            _REPAIR,
            code="QD-SAMPLES-FORMAT",
        )
    with reading(where, _REPAIR):
        data = base64.b64decode(value["array"], validate=True)
        read_header(io.BytesIO(data), where, len(data))
        array: Array = np.load(io.BytesIO(data), allow_pickle=False)
    return array
