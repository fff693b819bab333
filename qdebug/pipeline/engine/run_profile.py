"""The kernels' times that a run file keeps, where its engine was executed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdebug.errors import StoreError, UsageError
from qdebug.measure.engine import KernelTime
from qdebug.model.load import ModelFile
from qdebug.store.reader import RunReader
from qdebug.wording import option

_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_HOW = "Run `compare` on the GPU with an engine, and write a run file."


def is_run_file(path: Path) -> bool:
    """Whether `path` holds HDF5."""
    try:
        with path.open("rb") as file:
            return file.read(len(_HDF5_MAGIC)) == _HDF5_MAGIC
    except OSError:
        return False


def kernels_of_run(path: Path, model: ModelFile) -> tuple[KernelTime, ...]:
    """The times of the engine's layers in a run of `model`.

    Raises:
        UsageError: it is a run of another model, of no engine, or of one that was not executed.
        StoreError: it cannot be read.
    """
    with RunReader(path) as run:
        described, results = run.manifest.get("model"), run.results
    other = described if isinstance(described, Mapping) else {}
    if other.get("digest") != model.digest:
        raise UsageError(
            f"{option('profile')}: the run {path} is of another model "
            f"({other.get('path', 'unknown')})",
            "Give a run of the same model, or the JSON of trtexec --exportProfile.",
            code="QD-USAGE-PROFILE-RUN",
        )
    engine = results.get("engine")
    if not engine:
        raise UsageError(
            f"{option('profile')}: the run {path} was made without an engine",
            _HOW,
            code="QD-USAGE-PROFILE-RUN",
        )
    if not engine.get("execution"):
        why = engine.get("not_executed_because") or "no reason is given"
        raise UsageError(
            f"{option('profile')}: the engine of {path} was not executed: {why}",
            _HOW,
            code="QD-USAGE-PROFILE-RUN",
        )
    kernels = engine["execution"].get("kernels")
    if not kernels:
        raise UsageError(
            f"{option('profile')}: the run {path} holds no times of layers",
            _HOW,
            code="QD-USAGE-PROFILE-RUN",
        )
    try:
        return tuple(_kernel(entry) for entry in kernels)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"{path}: the times of layers are damaged.", _HOW, code="QD-STORE-DAMAGED"
        ) from error


def _kernel(entry: Mapping[str, Any]) -> KernelTime:
    nodes = tuple(map(str, entry["onnx_nodes"]))
    return KernelTime(str(entry["name"]), float(entry["ms"]), nodes, str(entry["precision"]))
