"""Read an ONNX model: one clear error for each way it can be wrong."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from qdebug.errors import ModelError
from qdebug.inmemory import InMemory
from qdebug.inputfiles import NotAFileError, open_file, read_bytes
from qdebug.model.check import check_structure
from qdebug.model.graph import opset_of

OLDEST_OPSET = 9
_SAFE_OPSET = 21
"""ONNX Runtime 1.20, the oldest that qdebug installs with, takes it: no need to ask."""
_PROTOBUF_LIMIT_BYTES = 2**31 - 2**20


@dataclass(frozen=True)
class ModelFile:
    """An ONNX model as it was given, weights included.

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
            Runtime takes, over 2 GB, or its external data are missing.
    """
    if isinstance(path, InMemory):
        return _taken(Path(path), path.value)
    path = Path(path)
    data = _read_bytes(path)
    proto = _parse(path, data)
    sha256 = hashlib.sha256(data).hexdigest()
    del data
    _check_opset(path, proto)
    digest = _load_external_data(path, proto, sha256)
    _check_size(path, proto)
    check_structure(path, proto)
    return ModelFile(path, proto, sha256, digest)


def _taken(where: Path, proto: onnx.ModelProto) -> ModelFile:
    """A model in memory. It is not changed.

    Raises:
        ModelError: as of `read_model`.
    """
    _check_graph(where, proto)
    _check_opset(where, proto)
    for tensor in _all_tensors(proto.graph):
        if uses_external_data(tensor):
            raise ModelError(
                f"{where}: the data of its initializer '{tensor.name}' are in a file and were not "
                "loaded",
                "Load the model with onnx.load(path), or give its path.",
                code="QD-MODEL-EXTERNAL-DATA",
            )
    _check_size(where, proto)
    check_structure(where, proto)
    sha256 = hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()
    return ModelFile(where, proto, sha256, sha256)


def _check_size(path: Path, proto: onnx.ModelProto) -> None:
    if proto.ByteSize() > _PROTOBUF_LIMIT_BYTES:
        raise ModelError(
            f"{path}: the model with its weights is over 2 GB ({proto.ByteSize() / 1e9:.1f} GB)",
            "Split it, or debug a smaller variant: qdebug rewrites the model in memory.",
            code="QD-MODEL-TOO-LARGE",
        )


def _read_bytes(path: Path) -> bytes:
    try:
        data = read_bytes(path)
    except IsADirectoryError:
        raise ModelError(
            f"{path}: is a directory, not an ONNX file", code="QD-MODEL-UNREADABLE"
        ) from None
    except FileNotFoundError:
        raise ModelError(
            f"{path}: no such file", "Give the path of an .onnx file.", code="QD-MODEL-NOT-FOUND"
        ) from None
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read: {error.strerror}", code="QD-MODEL-UNREADABLE"
        ) from error
    if not data:
        raise ModelError(
            f"{path}: the file is empty", "Export the model again.", code="QD-MODEL-TRUNCATED"
        )
    return data


def _parse(path: Path, data: bytes) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        # A field holding the graph starts the damage in a truncated file, so the parser cannot
        # tell it from another format; the size helps the user to.
        raise ModelError(
            f"{path}: not an ONNX file, or a truncated one ({len(data)} bytes)",
            "Compare its size with the original, or export the model again.",
            code="QD-MODEL-TRUNCATED",
        ) from None
    _check_graph(path, proto)
    return proto


def _check_graph(path: Path, proto: onnx.ModelProto) -> None:
    if not proto.HasField("graph") or not proto.graph.node:
        raise ModelError(
            f"{path}: not an ONNX model: it has no graph with nodes", code="QD-MODEL-NO-GRAPH"
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


@functools.cache
def newest_opset() -> int:
    """The newest opset that the installed onnx and ONNX Runtime both take.

    onnx is often ahead, and ONNX Runtime does not say how far it goes: it is asked with a model of
    one node, newest first.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
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


def _load_external_data(path: Path, proto: onnx.ModelProto, sha256: str) -> str:
    try:
        files = sorted(
            {
                ExternalDataInfo(t).location
                for t in _all_tensors(proto.graph)
                if uses_external_data(t)
            }
        )
    except ValueError as error:  # an offset that is no number, a name that is no text
        raise ModelError(
            f"{path}: where its external data lie is damaged: {error}",
            "Export the model again.",
            code="QD-MODEL-EXTERNAL-DATA",
        ) from error
    if not files:
        return sha256
    digest = hashlib.sha256(sha256.encode())
    for name in files:
        try:
            with open_file(path.parent / name) as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            why = error.strerror if isinstance(error, NotAFileError) else "missing or unreadable"
            raise ModelError(
                f"{path}: its external data file '{name}': {why}",
                f"Put '{name}' beside the model.",
                code="QD-MODEL-EXTERNAL-DATA",
            ) from None
    try:
        onnx.load_external_data_for_model(proto, str(path.parent))
    except Exception as error:  # onnx raises several kinds here, all of them about these files
        raise ModelError(
            f"{path}: its external data cannot be read: {error}", code="QD-MODEL-EXTERNAL-DATA"
        ) from error
    return digest.hexdigest()


def _all_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for body in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from _all_tensors(body)
