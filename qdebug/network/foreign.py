"""Files that are given as a model and are none: what they are, and how to get an ONNX model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qdebug.inputfiles import HDF5_MAGIC, open_file

ENGINE_SUFFIXES = (".engine", ".plan", ".trt")
_SAVED_MODEL = "saved_model.pb"
_KINDS = (
    (
        (".pt", ".pth", ".pt2", ".ckpt"),
        "a file of PyTorch",
        "Load it in Python and export it in one line:\n"
        "    torch.onnx.export(model.eval(), example_input, {onnx!r})\n"
        "  A model of Ultralytics: yolo export model={name} format=onnx",
    ),
    (
        (".safetensors", ".bin"),
        "a file of weights without the network",
        "Load them into the model in Python and export it in one line:\n"
        "    torch.onnx.export(model.eval(), example_input, {onnx!r})",
    ),
    (
        (".tflite",),
        "a TensorFlow Lite model",
        "Convert it (pip install tf2onnx):\n"
        "    python -m tf2onnx.convert --tflite {name} --opset 17 --output {onnx}",
    ),
    (
        (".pb",),
        "a TensorFlow graph",
        "Convert it (pip install tf2onnx), with the names of its inputs and outputs:\n"
        "    python -m tf2onnx.convert --graphdef {name} --inputs INPUT:0 --outputs OUTPUT:0 "
        "--opset 17 --output {onnx}",
    ),
    (
        (_SAVED_MODEL,),
        "a SavedModel of TensorFlow",
        "Convert it (pip install tf2onnx):\n"
        "    python -m tf2onnx.convert --saved-model {name} --opset 17 --output {onnx}",
    ),
    (
        (".keras",),
        "a Keras model",
        "Load it in Python and export it in one line:\n    model.export({onnx!r}, format='onnx')",
    ),
    (
        (".pdmodel", ".pdiparams", ".pdparams"),
        "a PaddlePaddle model",
        "Convert it (pip install paddle2onnx):\n"
        "    paddle2onnx --model_dir . --model_filename MODEL --params_filename PARAMS "
        "--save_file {onnx}",
    ),
    (
        ENGINE_SUFFIXES,
        "a TensorRT engine",
        "Give the ONNX model that it was built from. What is inside the engine:\n"
        "    qdebug inspect {name}",
    ),
    (
        (".ort", ".xml", ".mlmodel", ".mlpackage", ".param", ".om"),
        "a model converted for another runtime",
        "Give the ONNX model it was made from.",
    ),
    (
        (".h5", ".hdf5"),
        "an HDF5 file",
        "A run file is read by qdebug report, view and diff; of a Keras model, in Python:\n"
        "    model.export({onnx!r}, format='onnx')",
    ),
    (
        (".yaml", ".yml"),
        "a YAML file",
        "Give the ONNX model here; a precision plan, ranges and a configuration have settings of "
        "their own.",
    ),
    (
        (".npz", ".npy"),
        "an array file",
        "Give the ONNX model here; samples have a setting of their own.",
    ),
)
"""Endings of names, what such a file is, and how to get an ONNX model."""
_BEGINNINGS = (
    (4, b"TFL3", ".tflite"),
    (0, b"ptrt", ".engine"),
    (0, b"ftrt", ".engine"),
    (0, HDF5_MAGIC, ".h5"),
)
"""From which byte on a file holds what, and the ending that it could have."""


@dataclass(frozen=True)
class ForeignFile:
    """What a file is that is no ONNX model, and what to do about it."""

    what: str
    hint: str


def recognized(path: Path) -> ForeignFile | None:
    """What the file or folder at `path`, which is no ONNX model, is: by its content where that
    says so, else by the ending of its name. None where neither is known."""
    ending = _ending_by_content(path) or path.suffix.lower()
    for endings, what, hint in _KINDS:
        if ending in endings:
            return ForeignFile(what, hint.format(name=path, onnx=path.with_suffix(".onnx").name))
    return None


def _ending_by_content(path: Path) -> str | None:
    try:
        if path.is_dir():  # raises where the name is too long
            return _SAVED_MODEL if (path / _SAVED_MODEL).is_file() else None
        with open_file(path) as file:
            start = file.read(len(HDF5_MAGIC))
    except OSError:
        return None
    return next((ending for k, magic, ending in _BEGINNINGS if start[k:].startswith(magic)), None)
