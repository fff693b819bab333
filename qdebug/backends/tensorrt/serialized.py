"""Layers of a serialized engine, which only its library can read, on a GPU."""

from __future__ import annotations

import json

from qdebug.backends.tensorrt.execute.device import find_device
from qdebug.backends.tensorrt.execute.runtime import engine_header, layers_json, load_engine
from qdebug.backends.tensorrt.library import LibraryKind, load_library
from qdebug.backends.tensorrt.process import process_of
from qdebug.engine_info.files.layer_info import read_layer_info
from qdebug.engine_info.layers import EngineInfo
from qdebug.errors import QdebugError, UsageError

_MAGICS = {
    b"vtrt": LibraryKind.RTX,
    b"ptrt": LibraryKind.CLASSIC,
    b"ftrt": LibraryKind.CLASSIC,
    b"trtp": LibraryKind.CLASSIC,
}
"""First bytes of serialized engines (seen)."""
_INSTEAD = (
    "Give the layer information that trtexec --loadEngine=FILE --exportLayerInfo=FILE.json writes "
    "there, or the verbose log of its build."
)


def read_engine(data: bytes, name: str) -> EngineInfo | None:
    """What the engine's own inspector reports; None for anything but a serialized engine.

    Args:
        data: the content of the file.
        name: of the file, for errors.

    Raises:
        UsageError: this machine cannot read it; says what to give instead.
    """
    if data[:4] not in _MAGICS:
        return None
    header = engine_header(data)
    if header is not None and not header.whole:
        raise UsageError(
            f"{name} is a serialized engine of {header.builder}, and is truncated or corrupt",
            f"Compare its size with the original. {_INSTEAD}",
            code="QD-USAGE-ENGINE-FILE-DAMAGED",
        )
    device = find_device()
    if isinstance(device, str):
        who = header.builder if header is not None else "TensorRT"
        raise UsageError(
            f"{name} is a serialized engine: only {who}, on the GPU it was built for, can read "
            f"it ({device})",
            _INSTEAD,
            code="QD-USAGE-ENGINE-FILE-FOREIGN",
        )
    kind = _MAGICS[data[:4]]
    try:
        text = process_of(kind).ask("function", inspected, (kind, data), doing="loaded the engine")
    except QdebugError as error:
        raise UsageError(
            f"{name} is a serialized engine that cannot be read here: {error.message}",
            _INSTEAD,
            code="QD-USAGE-ENGINE-FILE-FOREIGN",
        ) from error
    return read_layer_info(json.loads(text), name)


def inspected(kind: LibraryKind, data: bytes) -> str:
    """The layers of a serialized engine as JSON.

    Raises:
        UsageError, BackendError: see `load_engine`.
    """
    return layers_json(load_engine(load_library(kind), data))
