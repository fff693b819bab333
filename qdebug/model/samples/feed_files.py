"""Files that hold one feed each, or a list of them."""

from __future__ import annotations

import base64
import binascii
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qdebug.errors import SampleError
from qdebug.inputfiles import open_file, read_bytes
from qdebug.model.samples.arrays import open_npz, read_all, read_header
from qdebug.model.samples.unchanged import Unchanged
from qdebug.types import Array, Feeds

CHUNK_BYTES = 1 << 20
_STRUCTURE = re.compile(rb'["\\{}\[\]]')
_LEGACY_MARKER = "__polygraphy_encoded_ndarray"
_TEST_DATA = "input_*.pb"


@dataclass(frozen=True)
class _Span:
    """Where one feed's JSON object lies in a file."""

    path: Path
    start: int
    stop: int


def open_json(files: list[Path]) -> JsonFeeds:
    """The feeds of one or more files.

    Raises:
        SampleError: not JSON, cut off, or not an object or a list of objects.
    """
    unchanged = {file: Unchanged([file]) for file in files}
    return JsonFeeds([span for file in files for span in _find_feeds(file)], unchanged)


class JsonFeeds:
    """Feeds in order, each decoded when it is read."""

    def __init__(self, spans: list[_Span], unchanged: Mapping[Path, Unchanged]) -> None:
        self._spans = spans
        self._unchanged = unchanged

    def read(self, index: int) -> Feeds | None:
        """Feed `index`, decoded.

        Raises:
            SampleError: it does not hold encoded numpy arrays, or its file was changed.
        """
        if index >= len(self._spans):
            return None
        with self._unchanged[self._spans[index].path].reading():
            return self._decoded(index)

    def _decoded(self, index: int) -> Feeds:
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


class FeedFiles:
    """Files or folders in order, each a feed that `load` reads."""

    def __init__(self, paths: list[Path], load: Callable[[Path], Feeds]) -> None:
        self._paths = paths
        self._load = load
        self._unchanged: dict[int, Unchanged] = {}

    def read(self, index: int) -> Feeds | None:
        """Feed `index`.

        Raises:
            SampleError: a file that is not of its kind, or is not as it was on the first pass.
        """
        if index >= len(self._paths):
            return None
        path = self._paths[index]
        if index not in self._unchanged:
            files = sorted(path.glob(_TEST_DATA)) if path.is_dir() else [path]
            self._unchanged[index] = Unchanged(files)
        with self._unchanged[index].reading():
            return self._load(path)

    def where(self, index: int) -> str:
        """The file or folder."""
        return str(self._paths[index])


def npz_feed(path: Path) -> Feeds:
    """The arrays of an `.npz`, by name."""
    return {name: read_all(array) for name, array in open_npz(path).items()}


def find_data_sets(path: Path) -> list[Path]:
    """The data sets in `path` in order; `path` itself when it is one; or none."""
    if any(path.glob(_TEST_DATA)):
        return [path]
    found = [each for each in path.glob("test_data_set_*") if any(each.glob(_TEST_DATA))]
    return sorted(found, key=natural_key)


def test_data_feed(path: Path, names: Sequence[str]) -> Feeds:
    """A data set of ONNX, without its expected outputs: each array by the proto's name where that
    is among the `names` of the inputs, otherwise by position.

    Raises:
        SampleError: a file that is not a TensorProto, or more files than inputs.
    """
    return dict(_named_tensor(file, names) for file in path.glob(_TEST_DATA))


def _named_tensor(file: Path, names: Sequence[str]) -> tuple[str, Array]:
    name, array = _read_tensor(file)
    if name in names:
        return name, array
    position = re.fullmatch(r"input_([0-9]+)", file.stem)
    if position is None or int(position[1]) >= len(names):
        raise SampleError(
            f"{file}: tensor '{name}' is not a model input, and the model has {len(names)} inputs.",
            "Remove the file, or name the tensor after an input.",
            code="QD-SAMPLES-NAMES",
        )
    return names[int(position[1])], array


def _read_tensor(file: Path) -> tuple[str, Array]:
    import onnx
    from onnx import numpy_helper

    try:
        tensor = onnx.load_tensor_from_string(read_bytes(file))
        return tensor.name, numpy_helper.to_array(tensor)
    except Exception as error:  # protobuf has errors of its own
        why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise SampleError(
            f"{file}: not a readable TensorProto ({why}).",
            "Write it with `onnx.save_tensor`.",
            code="QD-SAMPLES-DAMAGED",
        ) from error


def natural_key(path: Path) -> tuple[list[int | str], str]:
    """Sorts `img2` before `img10`; ties are broken by the plain name."""
    parts = re.split(r"([0-9]+)", path.name)
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], path.name
