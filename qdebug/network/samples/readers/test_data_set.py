"""ONNX's test data: folders `test_data_set_*`, each of which holds one feed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from qdebug.errors import SampleError
from qdebug.inputfiles import read_bytes
from qdebug.network.samples.feed_files import FeedFiles, natural_key
from qdebug.network.samples.samples import Source
from qdebug.types import Array, Feeds, TensorSpec

_TEST_DATA = "input_*.pb"


def read_folder(path: Path, inputs: Sequence[TensorSpec]) -> Source | None:
    """A feed in each data set of a folder, or in the folder itself."""
    data_sets = _data_sets(path)
    if not data_sets:
        return None
    return FeedFiles(data_sets, partial(_feed, names=[spec.name for spec in inputs]))


def _data_sets(path: Path) -> list[Path]:
    """The data sets in `path` in order; `path` itself when it is one; or none."""
    if any(path.glob(_TEST_DATA)):
        return [path]
    found = [each for each in path.glob("test_data_set_*") if any(each.glob(_TEST_DATA))]
    return sorted(found, key=natural_key)


def _feed(path: Path, names: Sequence[str]) -> Feeds:
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
