"""Read an ONNX model: one clear error for each way it can be wrong."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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
from qdebug.inputfiles import NotAFileError, open_file, read_bytes
from qdebug.network.check import PACKED_TYPES, check_structure
from qdebug.network.foreign import recognized
from qdebug.network.graph import opset_of
from qdebug.network.weights import LARGE_BYTES, Place, declare, lightened, model_digest
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
    """Read the model at `path` with its external data, or take the ModelProto that is `InMemory`.

    Raises:
        ModelError: the file is missing, not ONNX, truncated, older than opset 9, newer than ONNX
            Runtime takes, or its external data are missing.
    """
    if isinstance(path, InMemory):
        return _taken(Path(path), path.value)
    path = Path(path)
    with _reading(path):
        data = read_bytes(path)
    sha256 = hashlib.sha256(data).hexdigest()
    proto = _parse(path, data)
    del data
    _check_opset(path, proto)
    digest = _find_external_data(path, proto, sha256)
    check_structure(path, proto)
    return ModelFile(path, lightened(proto), sha256, digest)


def _taken(where: Path, proto: onnx.ModelProto) -> ModelFile:
    """A model in memory. It is not changed.

    Raises:
        ModelError: as of `read_model`.
    """
    if not _has_graph(proto):
        error = _no_graph(where)
        raise error
    _check_opset(where, proto)
    for tensor in _all_tensors(proto.graph):
        if uses_external_data(tensor):
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


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Errors of reading the file become errors about the model."""
    try:
        yield
    except IsADirectoryError:
        raise _foreign(path) or ModelError(
            f"{path}: is a directory, not an ONNX file",
            "Give the .onnx file in it.",
            code="QD-MODEL-UNREADABLE",
        ) from None
    except FileNotFoundError:
        raise ModelError(
            f"{path}: no such file", "Give the path of an .onnx file.", code="QD-MODEL-NOT-FOUND"
        ) from None
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read: {error.strerror}",
            "Check the path and its permissions.",
            code="QD-MODEL-UNREADABLE",
        ) from error


def _parse(path: Path, data: bytes) -> onnx.ModelProto:
    """The model that is serialized in the `data` of a file."""
    if not data:
        raise ModelError(
            f"{path}: the file is empty", "Export the model again.", code="QD-MODEL-TRUNCATED"
        )
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
    if not _has_graph(proto):
        raise _foreign(path) or _no_graph(path)
    return proto


def _foreign(path: Path) -> ModelError | None:
    """The error of a file of another kind, where that is known."""
    found = recognized(path)
    if found is None:
        return None
    message = f"{path} is {found.what}, not an ONNX model"
    return ModelError(message, found.hint, code="QD-MODEL-FORMAT")


def _has_graph(proto: onnx.ModelProto) -> bool:
    return proto.HasField("graph") and bool(proto.graph.node)


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
    if OLDEST_OPSET <= version <= _SAFE_OPSET:
        return
    newest = newest_opset()
    if version < OLDEST_OPSET or version > newest:
        raise ModelError(
            f"{path}: opset {version} is not supported; qdebug takes {OLDEST_OPSET} to {newest}",
            "Convert it with onnx.version_converter, or export it again at opset 17.",
            code="QD-MODEL-OPSET",
        )


@cache
def newest_opset() -> int:
    """The newest opset that the installed onnx and ONNX Runtime both take.

    onnx is often ahead, and ONNX Runtime does not say how far it goes: it is asked with a model of
    one node, newest first.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1  # it is not run, and others would be of all cores
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "probe",
        [value("x", TensorProto.FLOAT, [1])],
        [value("y", TensorProto.FLOAT, [1])],
    )
    for version in range(onnx.defs.onnx_opset_version(), _SAFE_OPSET, -1):
        opset = helper.make_opsetid("", version)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
        try:
            ort.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
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
    try:
        files = external_files(proto)
    except ValueError as error:  # an offset that is no number, a name that is no text
        raise ModelError(
            f"{path}: the location of its external data is damaged: {error}",
            "Export the model again.",
            code="QD-MODEL-EXTERNAL-DATA",
        ) from error
    if not files:
        return sha256
    digests = {name: _digest_of(path, name) for name in files}
    try:
        for tensor in proto.graph.initializer:
            if uses_external_data(tensor):
                _locate(path.parent, tensor, digests)
        for tensor in _inner_tensors(proto.graph):
            if uses_external_data(tensor):
                _load(path.parent, tensor)
    except Exception as error:  # onnx raises several kinds here, all of them about these files
        raise ModelError(
            f"{path}: its external data cannot be read: {error}",
            "They must be whole, and in a regular file in the model's folder (onnx follows no "
            "links): copy them there again.",
            code="QD-MODEL-EXTERNAL-DATA",
        ) from error
    whole = hashlib.sha256(sha256.encode())
    for name in files:
        whole.update(bytes.fromhex(digests[name]))
    return whole.hexdigest()


def _digest_of(path: Path, name: str) -> str:
    """SHA-256 of the SHA-256 of the blocks of a file beside the model, which several cores make.

    Raises:
        ModelError: it cannot be read.
    """
    try:
        with open_file(path.parent / name) as stream, ThreadPoolExecutor() as pool:
            size = os.fstat(stream.fileno()).st_size
            blocks = pool.map(partial(_block_digest, stream.fileno()), range(0, size, _BLOCK))
            return hashlib.sha256(b"".join(blocks)).hexdigest()
    except OSError as error:
        why = error.strerror if isinstance(error, NotAFileError) else "missing or unreadable"
        raise ModelError(
            f"{path}: its external data file '{name}': {why}",
            f"Put '{printable(name)}' beside the model.",
            code="QD-MODEL-EXTERNAL-DATA",
        ) from None


def _block_digest(file: int, start: int) -> bytes:
    digest, rest = hashlib.sha256(), _BLOCK
    while data := os.pread(file, min(rest, 1 << 20), start + _BLOCK - rest):
        digest.update(data)
        rest -= len(data)
    return digest.digest()


def _locate(folder: Path, tensor: TensorProto, digests: Mapping[str, str]) -> None:
    """Let a tensor say where its data are, as `model.weights` does, or load them; in place.

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
    probe = TensorProto(name=tensor.name, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", info.location), ("length", "1")):
        entry = probe.external_data.add()
        entry.key, entry.value = key, value
    _load(folder, probe)  # onnx decides which places are legal
    file = (folder / info.location).resolve()
    size = file.stat().st_size
    if (info.length or length) != length or offset + length > size:
        raise ValueError(
            f"'{tensor.name}', of shape {list(tensor.dims)}, takes {length} bytes from {offset}; "
            f"its entry gives {info.length or 'no length'}, and '{info.location}' ends at {size}"
        )
    place = Place(file, offset, length, f"{digests[info.location]}:{offset}:{length}")
    tensor.CopyFrom(declare(tensor.name, tensor.data_type, tuple(tensor.dims), place))


def _load(folder: Path, tensor: TensorProto) -> None:
    load_external_data_for_tensor(tensor, str(folder))
    tensor.data_location = TensorProto.DEFAULT  # older versions of onnx leave both as they were
    del tensor.external_data[:]


def external_files(proto: onnx.ModelProto) -> list[str]:
    """The files beside a model that hold its external data, as they are named in it.

    Raises:
        ValueError: an offset that is no number, a name that is no text.
    """
    tensors = (t for t in _all_tensors(proto.graph) if uses_external_data(t))
    names = {ExternalDataInfo(tensor).location for tensor in tensors}
    if damaged := next((name for name in names if not isinstance(name, str)), None):
        raise ValueError(f"the file name {damaged!r} is no text")
    return sorted(names)


def _all_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    yield from _inner_tensors(graph)


def _inner_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Those that the attributes of nodes hold."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for body in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from _all_tensors(body)
