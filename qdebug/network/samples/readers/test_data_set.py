"""ONNX's test data: folders `test_data_set_*`, each of which holds one feed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from qdebug.errors import SampleError
from qdebug.inputfiles import read_bytes
from qdebug.network.samples.damage import reading
from qdebug.network.samples.feed_files import FeedFiles, natural_key
from qdebug.network.samples.samples import Source
from qdebug.types import Feeds, TensorSpec

_TEST_DATA = "input_*.pb"


def read_folder(path: Path, inputs: Sequence[TensorSpec]) -> Source | None:
    """A feed in each data set of a folder, or in the folder itself."""
    folders = [path] if any(path.glob(_TEST_DATA)) else path.glob("test_data_set_*")
    data_sets = sorted((f for f in folders if any(f.glob(_TEST_DATA))), key=natural_key)
    if not data_sets:
        return None
    return FeedFiles(data_sets, partial(_feed, names=[spec.name for spec in inputs]))


def _feed(path: Path, names: Sequence[str]) -> Feeds:
    """A data set of ONNX, without its expected outputs: each array by the proto's name where that
    is among the `names` of the inputs, otherwise by position.

    Raises:
        SampleError: a file that is not a TensorProto, or more files than inputs.
    """
    import onnx

    feed = {}
    for file in path.glob(_TEST_DATA):
        with reading(file, "Write it with `onnx.save_tensor`, as input_N.pb."):
            tensor = onnx.load_tensor_from_string(read_bytes(file))
            array = onnx.numpy_helper.to_array(tensor)
            place = int(file.stem.removeprefix("input_"))
        if tensor.name not in names and place >= len(names):
            raise SampleError(
                f"{file}: tensor '{tensor.name}' is not a model input, and the model has "
                f"{len(names)} inputs.",
                "Remove the file, or name the tensor after an input.",
                code="QD-SAMPLES-NAMES",
            )
        feed[tensor.name if tensor.name in names else names[place]] = array
    return feed
