"""What every command checks before any work: the files that it writes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qdebug.config.flag import File, settings_of
from qdebug.errors import UsageError
from qdebug.inmemory import InMemory, path_in
from qdebug.outputfiles import check_distinct, check_new
from qdebug.plan.repaired import record_in
from qdebug.wording import option


def check_files(*declared: Any) -> None:
    """Refuse what would overwrite an input, or a file unasked, before anything runs.

    Args:
        declared: records of settings; which are files is declared with them.

    Raises:
        UsageError: two settings that are written, or one that is read, are the same file; or a
            name says that a file is of another kind.
        StoreError: a file cannot be written, or exists and must not be replaced.
    """
    force = any(getattr(record, "force", False) for record in declared)
    reads: dict[str, str] = {}
    writes: dict[str, tuple[str, File]] = {}
    for record in declared:
        for setting in settings_of(type(record)):
            file = setting.file
            for name, path in _paths(record, setting.name) if file else ():
                if file and file.written:
                    writes[name] = path, file
                else:
                    reads[name] = path
    check_distinct({name: path for name, (path, _) in writes.items()}, reads)
    for name, (path, file) in writes.items():
        check_suffix(name, path, file.suffixes)
        if file.written != "own":
            resumed = file.written == "resumed" and _is_left_of(path, *declared)
            check_new(path, name, force=force or resumed)


def _is_left_of(path: str, *declared: Any) -> bool:
    """Whether an unfinished repair of a model that is given left a file. Of a model in memory that
    is told when the result is there."""
    left = record_in(path)
    if left is None or not left.unfinished:
        return False
    models = [getattr(record, name, None) for record in declared for name in ("model", "reference")]
    if any(isinstance(model, InMemory) for model in models):
        return True
    for model in models:
        if isinstance(model, str) and Path(model).is_file():
            with Path(model).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() == left.model:
                    return True
    return False


_KINDS = {
    ".onnx": "an ONNX model",
    **dict.fromkeys((".yaml", ".yml"), "a YAML file"),
    ".json": "a JSON file",
    **dict.fromkeys((".html", ".htm"), "a page"),
    **dict.fromkeys((".h5", ".hdf5"), "a run file (HDF5)"),
    ".csv": "a CSV file",
    ".parquet": "a Parquet file",
    **dict.fromkeys((".npz", ".npy"), "an array file"),
    **dict.fromkeys((".pt", ".pth"), "a PyTorch model"),
    **dict.fromkeys((".engine", ".plan", ".trt"), "a TensorRT engine"),
    **dict.fromkeys((".png", ".jpg", ".svg", ".pdf"), "a picture"),
    ".xml": "an XML file",
    ".py": "a Python script",
    ".sh": "a shell script",
    ".cache": "a calibration cache",
}


def check_suffix(name: str, path: str, suffixes: tuple[str, ...]) -> None:
    """Refuse to write a file under a name that says it is of another kind.

    Args:
        name: what the user calls the setting.
        path: the file to write.
        suffixes: how its name should end, the usual one first; none takes any.

    Raises:
        UsageError: it ends as another kind of file does.
    """
    given = Path(path).suffix.lower()
    if not suffixes or given in suffixes or given not in _KINDS:
        return
    hint = f"Give for example {Path(path).with_suffix(suffixes[0])}."
    if given == ".onnx":
        hint += (
            " Quantized models are written by 'qdebug export PLAN --to onnx' and 'qdebug repair'."
        )
    raise UsageError(
        f"{name} writes {_KINDS[suffixes[0]]}, and {path} is named like {_KINDS[given]}",
        hint,
        code="QD-USAGE-OUTPUT-SUFFIX",
    )


def _paths(record: Any, setting: str) -> Iterator[tuple[str, str]]:
    """The paths that a setting names, by what the user calls them."""
    value, name = getattr(record, setting), option(setting)
    several = isinstance(value, tuple)
    for number, path in enumerate(value if several else (value,), start=1):
        if isinstance(path, str) and path_in(path) not in ("", "-"):
            yield (f"{name} ({number})" if several else name), path
