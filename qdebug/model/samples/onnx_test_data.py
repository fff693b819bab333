"""ONNX's `test_data_set_*` directories: `input_0.pb`, `input_1.pb`, ... are TensorProtos."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from qdebug.errors import SampleError
from qdebug.model.samples.base import natural_key
from qdebug.types import Array, Feeds, TensorSpec


def find_data_sets(path: Path) -> list[Path]:
    """The data sets in `path` in order; `path` itself when it is one; or none."""
    if any(path.glob("input_*.pb")):
        return [path]
    found = [each for each in path.glob("test_data_set_*") if any(each.glob("input_*.pb"))]
    return sorted(found, key=natural_key)


class OnnxTestData:
    """Data sets in order, each a feed. Expected outputs are ignored."""

    def __init__(self, data_sets: list[Path], inputs: Sequence[TensorSpec]) -> None:
        self._data_sets = data_sets
        self._names = [spec.name for spec in inputs]

    def read(self, index: int) -> Feeds | None:
        """Feed `index`: by the proto's name when it is an input's, otherwise by position.

        Raises:
            SampleError: a file that is no TensorProto, or more files than inputs.
        """
        if index >= len(self._data_sets):
            return None
        return dict(self._load(file) for file in self._data_sets[index].glob("input_*.pb"))

    def where(self, index: int) -> str:
        """The directory."""
        return str(self._data_sets[index])

    def _load(self, file: Path) -> tuple[str, Array]:
        name, array = _read_tensor(file)
        if name in self._names:
            return name, array
        position = re.fullmatch(r"input_([0-9]+)", file.stem)
        if position is None or int(position[1]) >= len(self._names):
            raise SampleError(
                f"{file}: tensor '{name}' is no model input, and the model has "
                f"{len(self._names)} inputs.",
                "Remove the file, or name the tensor after an input.",
            )
        return self._names[int(position[1])], array


def _read_tensor(file: Path) -> tuple[str, Array]:
    import onnx
    from onnx import numpy_helper

    try:
        tensor = onnx.load_tensor_from_string(file.read_bytes())
        return tensor.name, numpy_helper.to_array(tensor)
    except Exception as error:  # protobuf has errors of its own
        raise SampleError(
            f"{file}: not a readable TensorProto ({type(error).__name__}: {error}).",
            "Write it with `onnx.save_tensor`.",
        ) from error
