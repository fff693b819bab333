"""Read an ONNX model: one clear error for each way it can be wrong."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper
from onnx.external_data_helper import (
    ExternalDataInfo,
    load_external_data_for_tensor,
    uses_external_data,
)

from qdebug.errors import ModelError
from qdebug.inmemory import InMemory
from qdebug.inputfiles import open_file, read_bytes
from qdebug.network.check import PACKED_TYPES, check_structure
from qdebug.network.foreign import recognized
from qdebug.network.graph import opset_of
from qdebug.network.runtime import quiet_session
from qdebug.network.subgraphs import bodies
from qdebug.network.weights import (
    LARGE_BYTES,
    Place,
    declare,
    lightened,
    model_digest,
    set_location,
)
from qdebug.wording import printable

OLDEST_OPSET = 9
_BLOCK = 64 << 20
"""Bytes of a file that one core hashes."""
_SAFE_OPSET = 21
"""ONNX Runtime 1.20, the oldest that qdebug installs with, takes it: no need to ask."""


@dataclass(frozen=True)
class ModelFile:
    """An ONNX model as it was given; large weights are external data (model/weights.py).

    Attributes:
        path: the file; for a model in memory what it is called in messages.
        sha256: of the file's bytes; of a model in memory, of its serialization.
        digest: covers external data too, and is the key by which results may be reused.
    """

    path: Path
    proto: onnx.ModelProto
    sha256: str
    digest: str


def read_model(path: str | Path) -> ModelFile:
    """Read the model at `path` with its external data, or take the ModelProto that is `InMemory`,
    which is not changed.

    Raises:
        ModelError: the file is missing, not ONNX, truncated, older than opset 9, newer than ONNX
            Runtime takes, or its external data are missing.
    """
    if isinstance(path, InMemory):
        return _in_memory(Path(path), path.value)
    path = Path(path)
    try:
        data = read_bytes(path)
    except OSError as error:
        problem = _unreadable(path, error)
        raise problem from error
    sha256 = hashlib.sha256(data).hexdigest()
    proto = _parsed(path, data)
    del data
    _check_opset(path, proto)
    digest = _find_external_data(path, proto, sha256)
    check_structure(path, proto)
    return ModelFile(path, lightened(proto), sha256, digest)


def _in_memory(where: Path, proto: onnx.ModelProto) -> ModelFile:
    if not proto.graph.node:
        raise _no_graph(where)
    _check_opset(where, proto)
    outside = (t for t in _all_tensors(proto.graph) if uses_external_data(t))
    if tensor := next(outside, None):
        raise ModelError(
            f"{where}: the data of its initializer '{tensor.name}' are in a file and were not "
            "loaded",
            "Load the model with onnx.load(path), or give its path.",
            code="QD-MODEL-EXTERNAL-DATA",
        )
    check_structure(where, proto)
    light = lightened(proto)
    sha256 = model_digest(light)
    return ModelFile(where, light, sha256, sha256)


def _unreadable(path: Path, error: OSError) -> ModelError:
    """What is wrong with a file that cannot be read."""
    if isinstance(error, FileNotFoundError):
        hint = "Give the path of an .onnx file."
        return ModelError(f"{path}: no such file", hint, code="QD-MODEL-NOT-FOUND")
    what, hint = f"cannot be read: {error.strerror}", "Check the path and its permissions."
    if isinstance(error, IsADirectoryError):
        what, hint = "is a directory, not an ONNX file", "Give the .onnx file in it."
    return _foreign(path) or ModelError(f"{path}: {what}", hint, code="QD-MODEL-UNREADABLE")


def _parsed(path: Path, data: bytes) -> onnx.ModelProto:
    """The model that is serialized in the `data` of a file."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError):  # the second where protobuf is pure Python
        # A field holding the graph starts the damage in a truncated file, so the parser cannot
        # tell it from another format; the size helps the user to.
        raise _foreign(path) or ModelError(
            f"{path}: not an ONNX file, or a truncated one ({len(data)} bytes)",
            "Compare its size with the original, or export the model again.",
            code="QD-MODEL-TRUNCATED",
        ) from None
    if not data:
        hint = "Export the model again."
        raise ModelError(f"{path}: the file is empty", hint, code="QD-MODEL-TRUNCATED")
    if not proto.graph.node:
        raise _foreign(path) or _no_graph(path)
    return proto


def _foreign(path: Path) -> ModelError | None:
    """The error of a file of another kind, where that is known."""
    other = recognized(path)
    if other is None:
        return None
    message = f"{path} is {other.what}, not an ONNX model"
    return ModelError(message, other.hint, code="QD-MODEL-FORMAT")


def _no_graph(path: Path) -> ModelError:
    return ModelError(
        f"{path}: not an ONNX model: it has no graph with nodes",
        "Export the model again.",
        code="QD-MODEL-NO-GRAPH",
    )


def _check_opset(path: Path, proto: onnx.ModelProto) -> None:
    version = opset_of(proto)
    if not version:
        raise ModelError(
            f"{path}: the model imports no opset of ONNX's own operators; a file that was cut off "
            "may lack it",
            "Compare its size with the original, or export the model again.",
            code="QD-MODEL-NO-OPSET",
        )
    if not OLDEST_OPSET <= version <= _SAFE_OPSET and not _SAFE_OPSET < version <= newest_opset():
        raise ModelError(
            f"{path}: opset {version} is not supported; qdebug takes {OLDEST_OPSET} to "
            f"{newest_opset()}",
            "Convert it with onnx.version_converter, or export it again at opset 17.",
            code="QD-MODEL-OPSET",
        )


_PROBE = (
    '<ir_version: 8, opset_import: ["": {}]> probe (float[1] x) => (float[1] y) {{y = Relu(x)}}'
)


@cache
def newest_opset() -> int:
    """The newest opset that the installed onnx and ONNX Runtime both take.

    onnx is often ahead, and ONNX Runtime does not say how far it goes: it is asked with a model of
    one node, newest first.
    """
    for version in range(onnx.defs.onnx_opset_version(), _SAFE_OPSET, -1):
        try:
            quiet_session(onnx.parser.parse_model(_PROBE.format(version)))
        except Exception:  # whatever it says, it does not take this one
            continue
        return version
    return _SAFE_OPSET


def _find_external_data(path: Path, proto: onnx.ModelProto, sha256: str) -> str:
    """Say of large external data where they are, load the others; in place. Returns the digest of
    the model with its data.

    Raises:
        ModelError: they are missing, or not where they must be.
    """
    digests: dict[str, str] = {}
    name: object = ""
    try:
        for tensor in filter(uses_external_data, _all_tensors(proto.graph)):
            name = ExternalDataInfo(tensor).location
            if name not in digests:
                digests[name] = _digest_of(path.parent / name)
        for tensor in filter(uses_external_data, proto.graph.initializer):
            name = ExternalDataInfo(tensor).location
            _locate(path.parent, tensor, digests[name])
        for tensor in filter(uses_external_data, _inner_tensors(proto.graph)):
            _load(path.parent, tensor)
    except Exception as error:  # onnx raises several kinds here, all of them about these files
        why = error.strerror if isinstance(error, OSError) else error
        raise ModelError(
            f"{path}: its external data in {str(name)!r} cannot be read: {printable(str(why))}",
            "They must be whole, and in a regular file in the model's folder (onnx follows no "
            "links): put them there again.",
            code="QD-MODEL-EXTERNAL-DATA",
        ) from error
    if not digests:
        return sha256
    whole = hashlib.sha256(sha256.encode())
    for name in sorted(digests):
        whole.update(bytes.fromhex(digests[name]))
    return whole.hexdigest()


def _digest_of(file: Path) -> str:
    """SHA-256 of the SHA-256 of the blocks of a file, which several cores make.

    Raises:
        OSError: it cannot be read.
    """
    with open_file(file) as stream, ThreadPoolExecutor() as pool:
        size = os.fstat(stream.fileno()).st_size
        blocks = pool.map(partial(_block_digest, stream.fileno()), range(0, size, _BLOCK))
        return hashlib.sha256(b"".join(blocks)).hexdigest()


def _block_digest(file: int, start: int) -> bytes:
    digest, rest = hashlib.sha256(), _BLOCK
    while data := os.pread(file, min(rest, 1 << 20), start + _BLOCK - rest):
        digest.update(data)
        rest -= len(data)
    return digest.digest()


def _locate(folder: Path, tensor: TensorProto, digest: str) -> None:
    """Let a tensor say where its data are, as `network.weights` does, or load them; in place.

    Args:
        digest: of the file that they are in.

    Raises:
        ValueError: they are too few.
        Exception: onnx finds the place illegal, or cannot read there.
    """
    info = ExternalDataInfo(tensor)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    offset, length = info.offset or 0, math.prod(tensor.dims) * dtype.itemsize
    plain = tensor.data_type not in PACKED_TYPES and dtype.kind in "fiub"
    if not (plain and length >= LARGE_BYTES and offset % dtype.itemsize == 0):
        _load(folder, tensor)
        return
    probe = TensorProto(name=tensor.name)
    set_location(probe, info.location, length=1)
    _load(folder, probe)  # onnx decides which places are legal
    file = (folder / info.location).resolve()
    size = file.stat().st_size
    if (info.length or length) != length or offset + length > size:
        raise ValueError(
            f"'{tensor.name}', of shape {list(tensor.dims)}, takes {length} bytes from {offset}; "
            f"its entry gives {info.length or 'no length'}, and the file ends at {size}"
        )
    place = Place(file, offset, length, f"{digest}:{offset}:{length}")
    tensor.CopyFrom(declare(tensor.name, tensor.data_type, tuple(tensor.dims), place))


def _load(folder: Path, tensor: TensorProto) -> None:
    load_external_data_for_tensor(tensor, str(folder))
    tensor.data_location = TensorProto.DEFAULT  # older versions of onnx leave both as they were
    del tensor.external_data[:]


def _all_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    yield from _inner_tensors(graph)


def _inner_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Those that the attributes of nodes hold."""
    for node in graph.node:
        for attribute in node.attribute:
            yield from ([attribute.t] if attribute.HasField("t") else attribute.tensors)
        for body in bodies(node):
            yield from _all_tensors(body)
