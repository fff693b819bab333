"""How pictures become the input of a model, where that is not said: what lies beside the model,
what the model's own metadata say, and else a guess from its input.

In this order: what the user gives; a file beside the model, as the tools of `_BESIDE` write them;
`metadata_props` of the ONNX file; the shape of the input.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from configparser import ConfigParser
from configparser import Error as ConfigError
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import onnx
import yaml
from google.protobuf.message import DecodeError

from qdebug.errors import SampleError, given_by
from qdebug.inmemory import InMemory
from qdebug.inputfiles import read_bytes, read_text
from qdebug.network.preprocessing import (
    PRESETS,
    ColourName,
    Preprocessing,
    ResamplingName,
    ResizeName,
    fixed_channels,
    fixed_size,
    given_preprocessing,
    layout_of,
    picture_input,
)
from qdebug.network.samples.damage import reading
from qdebug.network.samples.matching import inputs_text, shape_text
from qdebug.network.samplespec import SampleSpec
from qdebug.types import TensorSpec
from qdebug.wording import option

_USUAL_SIZE = 640
"""Of a network whose height and width are both free, where pictures differ in size."""
_STEP = 32
"""Networks of free size usually take multiples of it: so many pixels become one."""
_WIDEST = 20
"""Times its height, of an input of free width."""
_LINES = (32, 48)
"""Heights of pictures of one line of text, that PaddleOCR's recognizers take."""


def input_for_pictures(inputs: Sequence[TensorSpec], where: str) -> TensorSpec:
    """The input that takes the pictures.

    Raises:
        SampleError: there are others, or its axes are not those of pictures.
    """
    taken = picture_input(inputs)
    if taken is not None:
        return taken
    raise SampleError(
        f"{where}: holds pictures, and the model does not take one picture per sample: "
        f"{inputs_text(inputs)}.",
        "Give arrays by input name (.npz), or a function that loads the samples: "
        "script.py:function.",
        code="QD-SAMPLES-PICTURE-INPUT",
    )


def fitted_preprocessing(
    spec: SampleSpec, taken: TensorSpec, sizes: Sequence[tuple[int, int]]
) -> Preprocessing:
    """How pictures of `sizes` become the input `taken` of `spec.model`; the size and the layout of
    what is found are those of the input, where its axes are fixed.

    Raises:
        SampleError: what is found contradicts the input.
        UsageError: the user's file cannot be read.
    """
    how = spec.preprocessing or find_preprocessing(spec.model, spec.preprocess, taken)
    layout = how.layout or layout_of(taken) or "nchw"
    height, width = fixed_size(taken, layout)
    channels = fixed_channels(taken, layout)
    if channels == 1 and len(how.mean) == len(how.std) == 1:
        how = replace(how, colour="gray")
    how = replace(how, layout=layout)
    if channels not in (None, how.channels):
        raise SampleError(
            f"{spec.data}: {how.source or 'the preprocessing'} gives pictures of "
            f"{how.channels} channels in {layout.upper()}, and input '{taken.name}' takes "
            f"{shape_text(taken.shape)}.",
            f"Say what it takes with {option('preprocess')}: a YAML file with the lines 'colour:' "
            "and 'layout:'.",
            code="QD-SAMPLES-PREPROCESSING",
        )
    if height is not None and width is not None:
        return replace(how, size=(height, width))
    return _sized(how, (height, width), sizes)


def _sized(
    how: Preprocessing, fixed: tuple[int | None, int | None], sizes: Sequence[tuple[int, int]]
) -> Preprocessing:
    """With a size for the axes that are free, too."""
    if how.size is not None and fixed == (None, None):
        return how
    same = sizes[0] if len(set(sizes)) == 1 else None
    height, width = fixed
    if how.resize == "none":
        return replace(how, size=same or how.size)
    if height is not None:  # one axis is fixed: as wide as the widest picture of that height
        widest = min(max(w / h for h, w in sizes), _WIDEST)
        return _guessed(how, (height, rounded_up(height * widest, _STEP)))
    if width is not None:
        tallest = min(max(h / w for h, w in sizes), _WIDEST)
        return _guessed(how, (rounded_up(width * tallest, _STEP), width))
    if same is not None and max(same) <= _USUAL_SIZE:
        return _guessed(how, (rounded_up(same[0], _STEP), rounded_up(same[1], _STEP)))
    return _guessed(how, (_USUAL_SIZE, _USUAL_SIZE))


def rounded_up(value: float, step: int) -> int:
    """The next multiple of `step`."""
    return step * max(1, math.ceil(value / step))


def _guessed(how: Preprocessing, size: tuple[int, int]) -> Preprocessing:
    source = how.source
    if not how.guess:
        source += "; the size is a guess"
    resize = "letterbox" if how.guess else how.resize
    return replace(how, size=size, resize=resize, source=source, guess=how.guess)


def find_preprocessing(model: str, given: str | None, taken: TensorSpec) -> Preprocessing:
    """What is given, found beside or in the model, or guessed; its size may be unknown.

    Args:
        model: the path of the model, or a model in memory; "" for none.
        given: by the user.
        taken: the model's input.

    Raises:
        UsageError: the user's file cannot be read.
    """
    if given is not None:
        with given_by("preprocess"):
            return given_preprocessing(given)
    if model and not isinstance(model, InMemory):
        found = beside_model(Path(model))
        if found is not None:
            return found
    metadata = read_metadata(model) if model else Metadata()
    return _of_ultralytics(metadata) or _of_paddleocr(metadata, taken) or _guess(taken)


def _guess(taken: TensorSpec) -> Preprocessing:
    scale = 1 / 255 if taken.dtype.kind == "f" else 1.0
    source = "from the shape of the input; nothing in or beside the model says more"
    return Preprocessing("exact", scale=scale, source=source, guess=True)


@dataclass(frozen=True)
class Metadata:
    """What an ONNX file says about itself.

    Attributes:
        properties: its metadata_props.
        name: of the file.
        last_axes: the last axis of each output, as far as fixed.
    """

    properties: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    last_axes: tuple[int, ...] = ()

    def get(self, key: str) -> str:
        """A property; "" where there is none."""
        return self.properties.get(key, "")


def read_metadata(model: str) -> Metadata:
    """The metadata of a model. Nothing of what cannot be read: that is said
    where the model itself is read."""
    if isinstance(model, InMemory):
        proto, name = model.value, str(model)
    else:
        name = Path(model).name
        proto = onnx.ModelProto()
        try:
            proto.ParseFromString(read_bytes(model))
        except (OSError, DecodeError, UnicodeDecodeError):
            return Metadata()
    axes = (
        v.type.tensor_type.shape.dim[-1].dim_value
        for v in proto.graph.output
        if v.type.tensor_type.shape.dim
    )
    properties = {entry.key: entry.value for entry in proto.metadata_props}
    return Metadata(properties, name, tuple(axis for axis in axes if axis > 0))


def _of_ultralytics(metadata: Metadata) -> Preprocessing | None:
    """What Ultralytics' exporter writes: task, imgsz, stride, names."""
    if not (metadata.get("task") and metadata.get("imgsz") and metadata.get("names")):
        return None
    size = _literal(metadata.get("imgsz"))
    if isinstance(size, int):
        size = [size, size]
    if not (isinstance(size, list | tuple) and len(size) == 2):
        return None
    version = " ".join(filter(None, ("Ultralytics", metadata.get("version"))))
    source = f"metadata_props of {metadata.name} ({version}, task {metadata.get('task')})"
    height, width = int(size[0]), int(size[1])
    if metadata.get("task") == "classify":  # torchvision's Resize and CenterCrop
        how = Preprocessing("shortest-edge", crop=1.0)
    else:
        how = PRESETS["yolo"]
    return replace(how, size=(height, width), source=source)


def class_names(metadata: Metadata) -> dict[int, str]:
    """The names of the classes, as Ultralytics' exporter writes them; none where it did not."""
    names = _literal(metadata.get("names"))
    if isinstance(names, list | tuple):
        names = dict(enumerate(names))
    if not isinstance(names, dict):
        return {}
    return {int(k): str(v) for k, v in names.items() if str(k).isdigit()}


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _of_paddleocr(metadata: Metadata, taken: TensorSpec) -> Preprocessing | None:
    """A recognizer of PaddleOCR with its characters in it: as many as it has classes, but for the
    blank and the space."""
    characters = len(metadata.get("character").splitlines())
    height = taken.shape[2]
    of_text = any(0 <= axis - characters <= 2 for axis in metadata.last_axes)
    if not characters or not of_text or (isinstance(height, int) and height not in _LINES):
        return None
    source = f"metadata_props of {metadata.name} (characters, as PaddleOCR's recognizers have)"
    return replace(PRESETS["ppocr-rec"], source=source)


def folders_beside(model: str) -> list[Path]:
    """Where files may lie that say more of a model: its folder, and the one above where that is one
    of Hugging Face's ("onnx") or of Triton's (a version); none of a model in memory."""
    if not model or isinstance(model, InMemory):
        return []
    parent = Path(model).parent
    above = parent.name == "onnx" or parent.name.isdigit()
    return [parent, parent.parent] if above else [parent]


def beside_model(model: Path) -> Preprocessing | None:
    """What files beside a model say of it; None where there are none."""
    for folder in folders_beside(str(model)):
        for pattern, read in _BESIDE.items():
            files = sorted(folder.glob(pattern.replace("MODEL", _escaped(model.stem))))
            for file in islice(files, _MOST_FILES):
                found = _read_beside(file, model, read)
                if found is not None:
                    return replace(found, source=str(file))
    return None


_MOST_FILES = 20
"""Of one kind that are looked at."""


def _escaped(stem: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", stem)


Reader = Callable[[str, Path], Preprocessing | None]
"""Reads the text of a file beside a model; None where it says nothing of the model."""


def _read_beside(file: Path, model: Path, read: Reader) -> Preprocessing | None:
    repair = f"Say with {option('preprocess')} how pictures become the input of {model}."
    with reading(file, repair, "QD-SAMPLES-PREPROCESSING"):
        try:
            return read(read_text(file), model)
        except (OSError, ConfigError, ElementTree.ParseError, yaml.YAMLError):
            return None  # another kind of file that is called so


_PILLOW: Sequence[ResamplingName] = (
    "pillow-nearest",
    "pillow-lanczos",
    "pillow-bilinear",
    "pillow-bicubic",
    "pillow-box",
    "pillow-hamming",
)
"""By Pillow's number, which Hugging Face writes."""
_PILLOW_BY_NAME = {name.removeprefix("pillow-"): name for name in _PILLOW}
_LOW_RES = 384
"""Hugging Face's ConvNext: below it the shortest edge is divided by crop_pct."""


def _of_hugging_face(text: str, _: Path) -> Preprocessing | None:
    data = json.loads(text)
    data = data.get("image_processor", data)
    if not {"image_mean", "do_normalize", "do_rescale", "do_resize"} & data.keys():
        return None
    size = data.get("size") if data.get("do_resize", True) else None
    crop = data.get("crop_size") if data.get("do_center_crop") else None
    normalize = data.get("do_normalize", True)
    scale = float(data.get("rescale_factor", 1 / 255)) if data.get("do_rescale", True) else 1.0
    return replace(
        Preprocessing(**_hugging_face_size(size, crop, data.get("crop_pct"))),
        resampling=_PILLOW[int(data.get("resample", 2))],
        colour="bgr" if data.get("do_flip_channel_order") else "rgb",
        scale=scale,
        mean=tuple(map(float, data["image_mean"])) if normalize else (0.0,),
        std=tuple(map(float, data["image_std"])) if normalize else (1.0,),
    )


def _hugging_face_size(size: Any, crop: Any, crop_share: Any) -> dict[str, Any]:
    if size is None:
        return {"resize": "none", "size": _sides(crop)}
    edge = size if isinstance(size, int) else size.get("shortest_edge")
    if edge is None or (isinstance(size, dict) and "height" in size):
        return {"resize": "exact", "size": _sides(size)}
    if isinstance(size, dict) and "longest_edge" in size:  # DETR: as a whole, padded with zeros
        return {"resize": "letterbox", "pad": "end", "pad_value": 0.0, "size": None}
    if crop_share is not None and edge < _LOW_RES:
        return {"resize": "shortest-edge", "size": (edge, edge), "crop": float(crop_share)}
    if crop is None:
        return {"resize": "exact", "size": (edge, edge)}
    return {"resize": "shortest-edge", "size": _sides(crop), "shortest_edge": int(edge)}


def _sides(size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    if isinstance(size, int):
        return size, size
    return int(size["height"]), int(size["width"])


def _of_timm(text: str, _: Path) -> Preprocessing | None:
    cfg = json.loads(text).get("pretrained_cfg")
    if not cfg:
        return None
    _, height, width = cfg["input_size"]
    squash = cfg.get("crop_mode") == "squash"
    return Preprocessing(
        "exact" if squash else "shortest-edge",
        (int(height), int(width)),
        crop=float(cfg.get("crop_pct") or 0.875),
        resampling=_PILLOW_BY_NAME[cfg.get("interpolation", "bicubic")],
        mean=tuple(map(float, cfg["mean"])),
        std=tuple(map(float, cfg["std"])),
    )


def _of_nvinfer(text: str, model: Path) -> Preprocessing | None:
    """DeepStream's [property]: y = net-scale-factor * (x - offsets)."""
    config = ConfigParser(interpolation=None, strict=False, inline_comment_prefixes=("#",))
    config.read_string(text)
    if "property" not in config or "net-scale-factor" not in config["property"]:
        return None
    group = config["property"]
    named = group.get("onnx-file", "")
    if named and Path(named).name != model.name:
        return None
    scale = float(group["net-scale-factor"])
    offsets = tuple(float(v) * scale for v in group.get("offsets", "0").split(";") if v.strip())
    keeps = group.getint("maintain-aspect-ratio", 0)
    colours: Mapping[int, ColourName] = {0: "rgb", 1: "bgr", 2: "gray"}
    return Preprocessing(
        "letterbox" if keeps else "exact",
        pad="both" if group.getint("symmetric-padding", 0) else "end",
        pad_value=0.0,
        resampling="opencv-bilinear",
        colour=colours[group.getint("model-color-format", 0)],
        scale=scale,
        mean=offsets,
    )


def _of_openvino(text: str, _: Path) -> Preprocessing | None:
    """rt_info/model_info of OpenVINO's Model API, which writes it beside the ONNX as MODEL.xml."""
    info = ElementTree.fromstring(text).find("rt_info/model_info")
    if info is None:
        return None
    said = {entry.tag: entry.get("value", "") for entry in info}
    if not {"mean_values", "scale_values", "resize_type"} & said.keys():
        return None
    resize: Mapping[str, ResizeName] = {
        "": "exact",
        "standard": "exact",
        "crop": "shortest-edge",
        "fit_to_window": "letterbox",
        "fit_to_window_letterbox": "letterbox",
    }
    how = said.get("resize_type", "")
    size = _numbers(said.get("orig_height", ""))[:1] + _numbers(said.get("orig_width", ""))[:1]
    return Preprocessing(
        resize[how],
        (int(size[0]), int(size[1])) if len(size) == 2 else None,
        crop=1.0,
        pad="both" if how.endswith("letterbox") else "end",
        pad_value=(_numbers(said.get("pad_value", "")) or (0.0,))[0],
        resampling="opencv-bilinear",
        # Models of the Model API take BGR, as OpenCV reads pictures, unless channels are reversed.
        colour="rgb"
        if said.get("reverse_input_channels", "").lower() in ("yes", "true")
        else "bgr",
        layout={"": None, "NCHW": "nchw", "NHWC": "nhwc"}.get(
            said.get("layout", "").rpartition(":")[2].upper()
        ),
        scale=1.0,
        mean=_numbers(said.get("mean_values", "")) or (0.0,),
        std=_numbers(said.get("scale_values", "")) or (1.0,),
    )


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, re.findall(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", text)))


def _of_triton(text: str, _: Path) -> Preprocessing | None:
    """Triton's config.pbtxt says the layout only: FORMAT_NHWC or FORMAT_NCHW."""
    found = re.search(r"format\s*:\s*FORMAT_(NHWC|NCHW)", text)
    if found is None:
        return None
    return Preprocessing(layout="nhwc" if found[1] == "NHWC" else "nchw", guess=True)


def _of_rknn(text: str, model: Path) -> Preprocessing | None:
    """The configuration of RKNN-Toolkit2's rknn_convert: y = (x - mean) / std."""
    data = yaml.safe_load(text)
    entry = data.get("models") if isinstance(data, dict) else None
    if not isinstance(entry, dict) or "mean_values" not in entry.get("configs", {}):
        return None
    if Path(str(entry.get("model_file_path", model.name))).name != model.name:
        return None
    configs = entry["configs"]
    return Preprocessing(
        colour="bgr" if configs.get("quant_img_RGB2BGR") else "rgb",
        resampling="opencv-bilinear",
        scale=1.0,
        mean=tuple(_flat(configs["mean_values"])),
        std=tuple(_flat(configs.get("std_values", [1.0]))),
    )


def _flat(values: Any) -> Iterator[float]:
    for value in values:
        if isinstance(value, list):
            yield from _flat(value)
        else:
            yield float(value)


_BESIDE: Mapping[str, Reader] = {
    "preprocessor_config.json": _of_hugging_face,
    "processor_config.json": _of_hugging_face,
    "config.json": _of_timm,
    "MODEL.xml": _of_openvino,
    "config*.txt": _of_nvinfer,
    "*.yml": _of_rknn,
    "*.yaml": _of_rknn,
    "config.pbtxt": _of_triton,
}
"""By the pattern of their names, in which MODEL is that of the model without its ending."""
