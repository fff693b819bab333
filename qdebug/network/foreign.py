"""Files that are given as a model and are none: what they are, and how to get an ONNX model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qdebug.inputfiles import HDF5_MAGIC, open_file

_TORCH = (
    "a file of PyTorch",
    "Load it in Python and export it in one line:\n"
    "    torch.onnx.export(model.eval(), example_input, {onnx!r})\n"
    "  A model of Ultralytics: yolo export model={name} format=onnx",
)
_WEIGHTS = (
    "a file of weights without the network",
    "Load them into the model in Python and export it in one line:\n"
    "    torch.onnx.export(model.eval(), example_input, {onnx!r})",
)
_TFLITE = (
    "a TensorFlow Lite model",
    "Convert it (pip install tf2onnx):\n"
    "    python -m tf2onnx.convert --tflite {name} --opset 17 --output {onnx}",
)
_GRAPHDEF = (
    "a TensorFlow graph",
    "Convert it (pip install tf2onnx), with the names of its inputs and outputs:\n"
    "    python -m tf2onnx.convert --graphdef {name} --inputs INPUT:0 --outputs OUTPUT:0 "
    "--opset 17 --output {onnx}",
)
_SAVED_MODEL = (
    "a SavedModel of TensorFlow",
    "Convert it (pip install tf2onnx):\n"
    "    python -m tf2onnx.convert --saved-model {name} --opset 17 --output {onnx}",
)
_KERAS = (
    "a Keras model",
    "Load it in Python and export it in one line:\n    model.export({onnx!r}, format='onnx')",
)
_PADDLE = (
    "a PaddlePaddle model",
    "Convert it (pip install paddle2onnx):\n"
    "    paddle2onnx --model_dir . --model_filename MODEL --params_filename PARAMS "
    "--save_file {onnx}",
)
_ENGINE = (
    "a TensorRT engine",
    "Give the ONNX model that it was built from. What is inside the engine:\n"
    "    qdebug inspect {name}",
)
_OTHER_RUNTIME = ("a model converted for another runtime", "Give the ONNX model it was made from.")
_HDF5 = (
    "an HDF5 file",
    "A run file is read by qdebug report, view and diff; of a Keras model, in Python:\n"
    "    model.export({onnx!r}, format='onnx')",
)
_YAML = (
    "a YAML file",
    "Give the ONNX model here; a precision plan, ranges and a configuration have settings of their "
    "own.",
)
_SAMPLES = ("an array file", "Give the ONNX model here; samples have a setting of their own.")

ENGINE_SUFFIXES = (".engine", ".plan", ".trt")
_BY_SUFFIX = {
    **dict.fromkeys((".pt", ".pth", ".pt2", ".ckpt"), _TORCH),
    **dict.fromkeys((".safetensors", ".bin"), _WEIGHTS),
    ".tflite": _TFLITE,
    ".pb": _GRAPHDEF,
    ".keras": _KERAS,
    **dict.fromkeys((".pdmodel", ".pdiparams", ".pdparams"), _PADDLE),
    **dict.fromkeys(ENGINE_SUFFIXES, _ENGINE),
    **dict.fromkeys((".ort", ".xml", ".mlmodel", ".mlpackage", ".param", ".om"), _OTHER_RUNTIME),
    **dict.fromkeys((".h5", ".hdf5"), _HDF5),
    **dict.fromkeys((".yaml", ".yml"), _YAML),
    **dict.fromkeys((".npz", ".npy"), _SAMPLES),
}
_FIRST_BYTES = 8


@dataclass(frozen=True)
class ForeignFile:
    """What a file is that is no ONNX model, and what to do about it."""

    what: str
    hint: str


def recognized(path: Path) -> ForeignFile | None:
    """What the file or folder at `path`, which is no ONNX model, is: by its content where that
    says so, else by the ending of its name. None where neither is known."""
    found = _by_content(path) or _BY_SUFFIX.get(path.suffix.lower())
    if found is None:
        return None
    what, hint = found
    return ForeignFile(what, hint.format(name=path, onnx=path.with_suffix(".onnx").name))


def _by_content(path: Path) -> tuple[str, str] | None:
    if path.is_dir():
        return _SAVED_MODEL if (path / "saved_model.pb").is_file() else None
    try:
        with open_file(path) as file:
            start = file.read(_FIRST_BYTES)
    except OSError:
        return None
    if start[4:] == b"TFL3":
        return _TFLITE
    if start[:4] in (b"ptrt", b"ftrt"):
        return _ENGINE
    return _HDF5 if start == HDF5_MAGIC else None
