"""Large constants stay out of the message: they are declared as external data.

A ModelProto that holds its weights is copied, checked, typed and serialized with them again and
again, and cannot exceed 2 GB. So in this package an initializer of `LARGE_BYTES` or more lies in a
file, which ONNX Runtime maps into memory: one copy, whatever the number of sessions and processes
that read it. It is either the user's own file or a temporary one, in the system's folder for those,
that holds what a rewrite made; what is the same is kept once. Locations are relative to the root of
the file system: `onnx.load_external_data_for_model(proto, "/")` makes a model self-contained.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import uses_external_data

from qdebug.outputfiles import Content, kept_in, write_all, write_bytes
from qdebug.types import Array

LARGE_BYTES = 1 << 18
"""Initializers up to this size stay in the message."""
ONE_FILE_BYTES = 1_500_000_000
"""A larger model is written with external data: no message may exceed 2 GiB."""
ROOT = "/"
"""What locations are relative to."""
_ALIGNMENT = 4096
"""Bytes: what begins on a page is mapped without a rest of its neighbour."""
_SIMPLE = frozenset("fiub")
"""Kinds of dtype whose elements are whole bytes in memory and in a file alike."""


@dataclass(frozen=True)
class Place:
    """Where the data of a constant lie.

    Attributes:
        path: a file, absolute and without links.
        offset, length: in bytes.
        digest: the same for the same data, also in another file or process.
    """

    path: Path
    offset: int
    length: int
    digest: str


def is_large(values: Array) -> bool:
    """Whether a constant is declared as external data."""
    return values.nbytes >= LARGE_BYTES and values.dtype.kind in _SIMPLE


def tensor_of(values: Array, name: str, digest: str = "") -> TensorProto:
    """A constant: small ones with their data, large ones with the place of them. A `digest` that
    belongs to these values alone spares that of their bytes.

    Raises:
        StoreError: the temporary file cannot be written.
    """
    if not is_large(values):
        return numpy_helper.from_array(values, name)
    kind = helper.np_dtype_to_tensor_dtype(values.dtype)
    return declare(name, kind, values.shape, _SCRATCH.keep(np.ascontiguousarray(values), digest))


def declare(name: str, kind: int, shape: tuple[int, ...], place: Place) -> TensorProto:
    """A constant whose data are at `place`; `kind` is its ONNX element type."""
    location = os.path.relpath(place.path, ROOT)
    tensor = TensorProto(name=name, data_type=kind, dims=shape)
    set_location(tensor, location, offset=place.offset, length=place.length, checksum=place.digest)
    return tensor


def set_location(tensor: TensorProto, location: str, **entries: str | int) -> None:
    """Let a tensor say in which file its data are, and where; in place."""
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))


def place_of(tensor: TensorProto) -> Place | None:
    """Where the data of a constant lie; None where it holds them itself."""
    if not uses_external_data(tensor):
        return None
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return Place(
        Path(ROOT, entries["location"]),
        int(entries["offset"]),
        int(entries["length"]),
        entries["checksum"],
    )


def values_of(tensor: TensorProto) -> Array:
    """The value of a constant. A large one is mapped, not read, and must not be written to; it
    takes memory as far and as long as it is used."""
    place = place_of(tensor)
    if place is None:
        return numpy_helper.to_array(tensor)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return np.asarray(np.memmap(place.path, dtype, "r", place.offset, tuple(tensor.dims)))


def renamed(tensor: TensorProto, name: str) -> TensorProto:
    """The same constant under another name."""
    copied = deepcopy(tensor)
    copied.name = name
    return copied


def external_bytes(proto: onnx.ModelProto) -> int:
    """What the constants of a model take that it does not hold itself."""
    places = (place_of(tensor) for tensor in proto.graph.initializer)
    return sum(place.length for place in places if place)


def lightened(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `proto` without the data of its large initializers.

    Raises:
        StoreError: as of `tensor_of`.
    """
    return _with_constants(proto, map(_light, proto.graph.initializer))


def model_digest(proto: onnx.ModelProto) -> str:
    """SHA-256 of a model with its weights, wherever their data lie.

    Without the shapes of tensors inside: they follow from the rest, and shape inference writes the
    same symbolic dimension in several ways, another one in each process.
    """
    if proto.graph.value_info or external_bytes(proto):
        copied = deepcopy(proto)
        del copied.graph.value_info[:]
        for tensor in copied.graph.initializer:
            place = place_of(tensor)
            if place:
                del tensor.external_data[:]
                tensor.raw_data = place.digest.encode()
        proto = copied
    return hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()


def without_external(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `proto` in which external data count as inputs: for tools that would look for the
    files."""
    stub = _with_constants(proto, (t for t in proto.graph.initializer if not place_of(t)))
    stub.graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, t.dims)
        for t in proto.graph.initializer
        if place_of(t)
    )
    return stub


def with_data(proto: onnx.ModelProto) -> onnx.ModelProto:
    """`proto` with the data of its constants; itself where it has them."""
    if not external_bytes(proto):
        return proto
    constants = (
        numpy_helper.from_array(values_of(t), t.name) if place_of(t) else t
        for t in proto.graph.initializer
    )
    return _with_constants(proto, constants)


def without_graph(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of all of a model but its graph."""
    bare = onnx.ModelProto()
    _copy_fields(proto, bare, "graph")
    return bare


def _with_constants(proto: onnx.ModelProto, constants: Iterable[TensorProto]) -> onnx.ModelProto:
    """A copy of a model with other initializers; its own, which may be large, are not copied."""
    copied = without_graph(proto)
    _copy_fields(proto.graph, copied.graph, "initializer")
    copied.graph.initializer.extend(constants)
    return copied


def serialized(proto: onnx.ModelProto) -> bytes:
    """A model with all its data.

    Raises:
        ValueError, EncodeError: it is over 2 GB.
    """
    data: bytes = with_data(proto).SerializeToString(deterministic=True)
    return data


def size_with_data(proto: onnx.ModelProto) -> int:
    """Of `serialized`, in bytes."""
    return int(proto.ByteSize()) + external_bytes(proto)


def model_files(proto: onnx.ModelProto, path: Path) -> dict[Path, Content]:
    """The files of a model to be written at `path`: one where it is not over `ONE_FILE_BYTES`, else
    its large weights as external data in a second one beside it."""
    if size_with_data(proto) <= ONE_FILE_BYTES:
        return {path: serialized(proto)}
    data = path.with_name(f"{path.name}.data")
    light = deepcopy(proto)
    moved: list[tuple[int, TensorProto]] = []
    end = 0
    for tensor, source in zip(light.graph.initializer, proto.graph.initializer, strict=True):
        place = place_of(source)
        if place is not None:
            offset = _aligned(end)
            end = offset + place.length
            moved.append((offset, source))
            set_location(tensor, data.name, offset=offset, length=place.length)

    def write(file: IO[bytes]) -> None:
        for offset, tensor in moved:
            file.seek(offset)
            file.write(_as_bytes(values_of(tensor)))

    return {path: light.SerializeToString(deterministic=True), data: write}


def write_model(proto: onnx.ModelProto, path: str, flag: str, *, force: bool) -> None:
    """Write a model; `flag` is what gave the path.

    Raises:
        StoreError: as of `outputfiles.write_bytes`.
    """
    if size_with_data(proto) <= ONE_FILE_BYTES:
        write_bytes(path, serialized(proto), flag, force=force)
    else:
        write_all(model_files(proto, Path(path)), flag, force=force)


@contextmanager
def on_disk(proto: onnx.ModelProto) -> Iterator[Path]:
    """The model as a file, for tools that read their models from there; for as long as the context.

    Raises:
        StoreError: the disk refuses.
    """
    with tempfile.TemporaryDirectory(prefix="qdebug-") as folder:
        path = Path(folder) / "model.onnx"
        with kept_in(path.parent, _weights(size_with_data(proto))):
            for file, data in model_files(proto, path).items():
                with file.open("wb") as stream:
                    _ = stream.write(data) if isinstance(data, bytes) else data(stream)
        yield path


def _light(tensor: TensorProto) -> TensorProto:
    if uses_external_data(tensor) or _held_bytes(tensor) < LARGE_BYTES:
        return tensor
    if tensor.data_type == TensorProto.STRING:
        return tensor
    values = numpy_helper.to_array(tensor)
    return tensor_of(values, tensor.name) if is_large(values) else tensor


def _held_bytes(tensor: TensorProto) -> int:
    """What it takes in its message. Of a message of over 2 GiB protobuf does not say the size."""
    return len(tensor.raw_data) if tensor.HasField("raw_data") else tensor.ByteSize()


def _copy_fields(source: Message, target: Message, left_out: str) -> None:
    for field, value in source.ListFields():
        if isinstance(value, str | bytes | int | float):
            setattr(target, field.name, value)
        elif field.name != left_out:
            getattr(target, field.name).MergeFrom(value)


class _Scratch:
    """The temporary file of this process: it grows, and goes when the process ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: Path | None = None
        self._fd = -1
        self._owner = 0
        self._end = 0
        self._kept: dict[str, Place] = {}

    def keep(self, values: Array, digest: str = "") -> Place:
        """Where these values, contiguous in memory, are kept from now on.

        Raises:
            StoreError: the disk refuses.
        """
        data = _as_bytes(values)
        digest = digest or hashlib.sha256(data).hexdigest()
        with self._lock:
            self._belongs_here()
            if digest not in self._kept:
                self._kept[digest] = self._append(data, digest)
            return self._kept[digest]

    def _append(self, data: memoryview, digest: str) -> Place:
        with kept_in(Path(tempfile.gettempdir()), _weights(len(data))):
            if self._file is None:
                self._fd, name = tempfile.mkstemp(prefix="qdebug-weights-")
                self._file = Path(name)
                atexit.register(_remove, self._file, self._owner)
            offset = _aligned(self._end)
            written = 0
            while written < len(data):
                written += os.pwrite(self._fd, data[written:], offset + written)
        self._end = offset + len(data)
        return Place(self._file, offset, len(data), digest)

    def _belongs_here(self) -> None:
        """A forked process starts a file of its own; what was kept before it stays readable as long
        as the parent lives."""
        if self._owner != os.getpid():
            self._owner, self._file, self._end = os.getpid(), None, 0


def _remove(file: Path, owner: int) -> None:
    if os.getpid() == owner:  # not where a forked process ends
        file.unlink(missing_ok=True)


_SCRATCH = _Scratch()


def _as_bytes(values: Array) -> memoryview:
    """Of an array that is contiguous, without a copy."""
    return values.reshape(-1).view(np.uint8).data


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _weights(size: int) -> str:
    return f"{size / 1e6:.1f} MB of weights"
