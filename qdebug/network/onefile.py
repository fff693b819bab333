"""Read the message of a model without the large weights in it.

Parsed as a whole, a file is in memory twice, as bytes and as the message. Here the bytes of large
initializers are skipped, and read later, one after the other. The encoding is that of
https://protobuf.dev/programming-guides/encoding/, the numbers of fields are those of onnx.proto.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.external_data_helper import uses_external_data

from qdebug.network.check import MOST_AXES
from qdebug.network.weights import LARGE_BYTES, tensor_of
from qdebug.types import Array

_GRAPH, _INITIALIZER, _RAW_DATA = (
    message.DESCRIPTOR.fields_by_name[name].number
    for message, name in (
        (onnx.ModelProto, "graph"),
        (onnx.GraphProto, "initializer"),
        (TensorProto, "raw_data"),
    )
)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_MOST = 2**31 - 1
"""Bytes of a message at most."""
_NUMBERS = range(1, 2**29)
_CONTINUES, _LONGEST_VARINT, _LONGEST_LENGTH = 0x80, 10, 5
"""A byte of a varint of at least this value is followed by another; how many bytes a value may
take, and a tag or a length."""
_MOST_FIELDS = 200_000
"""With more of them, following them costs more than it saves."""


@dataclass(frozen=True)
class Skipped:
    """The data of an initializer that are not in the message.

    Attributes:
        index: of the initializer in the graph.
        offset, length: where they are in the file, in bytes.
    """

    index: int
    offset: int
    length: int


class _NotFollowedError(Exception):
    """The file is not a message of this kind, or is written in a way that only a parser of all of
    protobuf follows."""


def without_weights(file: BufferedReader) -> tuple[bytes, tuple[Skipped, ...]]:
    """The serialized model in `file` without the raw data of initializers of LARGE_BYTES or more,
    and what was left out. What cannot be followed is returned whole, to be parsed as it is.

    Raises:
        OSError: the file cannot be read.
    """
    size = os.fstat(file.fileno()).st_size
    if size > LARGE_BYTES:
        try:
            return _model(_Stream(file), size)
        except _NotFollowedError:
            file.seek(0)
    return file.read(), ()


def put_back(file: BufferedReader, proto: onnx.ModelProto, skipped: tuple[Skipped, ...]) -> None:
    """Give the initializers of a model their data, in place: as external data (model/weights.py),
    or in the message where they do not fit the shape.

    Raises:
        OSError: the file cannot be read, or has shrunk.
        StoreError: as of `tensor_of`.
    """
    for one in skipped:
        tensor = proto.graph.initializer[one.index]
        data = _data(file, one)
        values = _values(tensor, data)
        if values is None:
            tensor.raw_data = data
        else:
            tensor.CopyFrom(tensor_of(values, tensor.name))


def put_back_external(
    file: BufferedReader, proto: onnx.ModelProto, skipped: tuple[Skipped, ...]
) -> tuple[Skipped, ...]:
    """Give initializers that are also declared as external data what they hold themselves, in
    place, as a parser would have; returns the rest of `skipped`. Raises OSError as `put_back`."""
    left = []
    for one in skipped:
        tensor = proto.graph.initializer[one.index]
        if uses_external_data(tensor):
            tensor.raw_data = _data(file, one)
        else:
            left.append(one)
    return tuple(left)


def _data(file: BufferedReader, skipped: Skipped) -> bytes:
    file.seek(skipped.offset)
    data = file.read(skipped.length)
    if len(data) < skipped.length:
        raise OSError(None, "it shrank while it was read")
    return data


def _values(tensor: TensorProto, data: bytes) -> Array | None:
    """The value that the data are of; None where `check_structure` is to judge."""
    if not isinstance(tensor.name, str) or tensor.data_type not in TensorProto.DataType.values():
        return None
    if tensor.data_type in (TensorProto.UNDEFINED, TensorProto.STRING):
        return None
    dtype, dims = helper.tensor_dtype_to_np_dtype(tensor.data_type), tuple(tensor.dims)
    if dtype.kind not in "fiub" or min(dims, default=0) < 0 or len(dims) > MOST_AXES:
        return None
    if math.prod(dims) * dtype.itemsize != len(data):
        return None
    return np.frombuffer(data, dtype).reshape(dims)


class _Stream:
    """A file that is read from its beginning; `fields` have been followed so far."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self.at = 0
        self.fields = 0

    def read(self, length: int) -> bytes:
        data = self._file.read(length)
        if len(data) < length:
            raise _NotFollowedError
        self.at += length
        return data

    def skip(self, length: int) -> None:
        self.at = self._file.seek(self.at + length)

    def varint(self) -> bytes:
        found = b""
        while len(found) < _LONGEST_VARINT:
            found += self.read(1)
            if found[-1] < _CONTINUES:
                return found
        raise _NotFollowedError


def _model(stream: _Stream, end: int) -> tuple[bytes, tuple[Skipped, ...]]:
    parts: list[bytes] = []
    skipped: list[Skipped] = []
    graphs = 0
    for field in _fields(stream, end):
        if field.is_one(_GRAPH):
            graphs += 1
            parts.append(field.holding(_graph(stream, field.end, skipped)))
        else:
            parts.append(field.holding(stream.read(field.length)))
    if graphs != 1:  # protobuf would join several into one
        raise _NotFollowedError
    return b"".join(parts), tuple(skipped)


def _graph(stream: _Stream, end: int, skipped: list[Skipped]) -> bytes:
    parts: list[bytes] = []
    initializers = 0
    for field in _fields(stream, end):
        if field.is_one(_INITIALIZER):
            value = _tensor(stream, field.end, initializers, skipped)
            initializers += 1
        else:
            value = stream.read(field.length)
        parts.append(field.holding(value))
    return b"".join(parts)


def _tensor(stream: _Stream, end: int, index: int, skipped: list[Skipped]) -> bytes:
    if end - stream.at < LARGE_BYTES:
        return stream.read(end - stream.at)
    parts: list[bytes] = []
    given = 0
    for field in _fields(stream, end):
        is_data = field.is_one(_RAW_DATA)
        given += is_data
        if is_data and field.length >= LARGE_BYTES:
            skipped.append(Skipped(index, stream.at, field.length))
            stream.skip(field.length)
        else:
            parts.append(field.holding(stream.read(field.length)))
    if given > 1:  # the last would count
        raise _NotFollowedError
    return b"".join(parts)


@dataclass(frozen=True)
class _Field:
    """A field of a message: its tag as it is in the file, and where its value is."""

    number: int
    kind: int
    tag: bytes
    length: int
    end: int

    def is_one(self, number: int) -> bool:
        """Whether it is the field of bytes of this number. Written as another kind, a parser takes
        it for an unknown one.

        Raises:
            _NotFollowedError: it is.
        """
        if self.number == number and self.kind != _BYTES:
            raise _NotFollowedError
        return self.number == number

    def holding(self, value: bytes) -> bytes:
        """The field with another value."""
        size = _varint(len(value)) if self.kind == _BYTES else b""
        return self.tag + size + value


def _fields(stream: _Stream, end: int) -> Iterator[_Field]:
    """The fields of a message that ends at `end`. The value of each is to be read, or skipped,
    before the next.

    Raises:
        _NotFollowedError: they are not to be followed.
    """
    while stream.at < end:
        tag = stream.varint()
        key = _number(tag)
        number, kind = key >> 3, key & 7
        if kind == _BYTES:
            length = _number(stream.varint())
        elif kind in _FIXED:
            length = _FIXED[kind]
        elif kind == _VARINT:  # given back as its value
            value = stream.varint()
            stream.skip(-len(value))
            length = len(value)
        else:  # groups, which nobody writes any more
            raise _NotFollowedError
        field = _Field(number, kind, tag, length, stream.at + length)
        stream.fields += 1
        if number not in _NUMBERS or field.end > end or stream.fields > _MOST_FIELDS:
            raise _NotFollowedError
        yield field


def _number(varint: bytes) -> int:
    found = sum((byte % _CONTINUES) << 7 * i for i, byte in enumerate(varint))
    if found > _MOST or len(varint) > _LONGEST_LENGTH:
        raise _NotFollowedError
    return found


def _varint(number: int) -> bytes:
    found = b""
    while number >= _CONTINUES:
        found += bytes([number % _CONTINUES + _CONTINUES])
        number //= _CONTINUES
    return found + bytes([number])
