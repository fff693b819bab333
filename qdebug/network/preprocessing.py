"""How a picture becomes the input of a network, as a value. Importing this module imports no numpy.

It is written in a YAML file, named as a preset, or found beside or in the model
(samples/found_preprocessing.py); samples/pictures.py applies it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from qdebug.errors import UsageError
from qdebug.inmemory import InMemory
from qdebug.wording import as_known

if TYPE_CHECKING:
    from pydantic import BaseModel

    from qdebug.types import TensorSpec

ResizeName = Literal["exact", "shortest-edge", "letterbox", "none"]
PadName = Literal["both", "end"]
ColourName = Literal["rgb", "bgr", "gray"]
LayoutName = Literal["nchw", "nhwc"]
ResamplingName = Literal[
    "pillow-nearest",
    "pillow-box",
    "pillow-bilinear",
    "pillow-hamming",
    "pillow-bicubic",
    "pillow-lanczos",
    "opencv-nearest",
    "opencv-bilinear",
    "opencv-bicubic",
    "opencv-area",
    "opencv-lanczos",
]
CHANNELS = (1, 3)
_PICTURE_AXES = 4
_SIZE_INPUT = "orig_target_sizes"


@dataclass(frozen=True)
class Preprocessing:
    """How a picture becomes a network's input: resized, cropped or padded, and then
    (pixel * scale - mean) / std of each channel.

    Attributes:
        resize: to `size` whatever the sides ("exact"); to a shortest edge, of which the middle is
            taken ("shortest-edge"); into `size` as a whole, the rest padded ("letterbox"); or not.
        size: height and width, where the axes of the network's input are free.
        crop: what a centre crop keeps of the shortest edge, as timm's crop_pct.
        shortest_edge: in pixels, before the crop; None follows from `size` and `crop`.
        pad: on both sides, or at the right and the bottom only.
        pad_value: of every channel, in pixel values before `scale`.
        resampling: whose filter, exactly: Pillow's smooth where they make smaller, OpenCV's do not.
        colour: the order of the channels.
        layout: of the network's input; None takes what its shape says.
        scale: of pixel values from 0 to 255, before mean and standard deviation.
        mean, std: of each channel in the order of `colour`, after `scale`; one value is for all.
        source: where it was found, for people.
        guess: it is a guess, and not read anywhere.

    Raises:
        ValueError: nothing can be divided by `scale`, `crop` or `std`, or `mean` or `std` has
            neither one value nor one for each channel of `colour`.
    """

    resize: ResizeName = "exact"
    size: tuple[int, int] | None = None
    crop: float = 0.875
    shortest_edge: int | None = None
    pad: PadName = "both"
    pad_value: float = 114.0
    resampling: ResamplingName = "pillow-bilinear"
    colour: ColourName = "rgb"
    layout: LayoutName | None = None
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    source: str = field(default="", compare=False)
    guess: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        for name, values in (("scale", (self.scale,)), ("crop", (self.crop,)), ("std", self.std)):
            if not all(0 < value < math.inf for value in values):
                raise ValueError(f"{name} is {_listed(values)}, and must be above 0")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.channels):
                raise ValueError(
                    f"{name} has {len(values)} values, where colour '{self.colour}' takes 1"
                    + (f" or {self.channels}" if self.channels > 1 else "")
                )

    @property
    def edge(self) -> int:
        """The shortest edge before the crop, where `size` is known."""
        if self.shortest_edge is not None:
            return self.shortest_edge
        return math.floor(min(self.size or (0, 0)) / self.crop)

    @property
    def channels(self) -> int:
        """Of the network's input."""
        return 1 if self.colour == "gray" else 3

    @property
    def divisor(self) -> int | None:
        """The whole number that `scale` is one over, such as 255; None where it is none, or 1."""
        inverse = 1 / self.scale
        return round(inverse) if inverse > 1 and abs(inverse - round(inverse)) < _WHOLE else None

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """The network's input without its batch axis, where `size` is known."""
        height, width = self.size or (0, 0)
        if self.layout == "nhwc":
            return height, width, self.channels
        return self.channels, height, width

    def told(self) -> str:
        """What is done, for people: one line."""
        height, width = self.size or ("?", "?")
        filtered = self.resampling.replace("pillow-", "Pillow ").replace("opencv-", "OpenCV ")
        where = f"{height}x{width}"
        side = "right and bottom" if self.pad == "end" else "both sides"
        resized = {
            "exact": f"resized to {where} ({filtered})",
            "shortest-edge": f"shortest edge {self.edge} ({filtered}), centre crop {where}",
            "letterbox": f"letterboxed to {where} ({filtered}, {side} padded with "
            f"{self.pad_value:g})",
            "none": f"as they are, {where}",
        }[self.resize]
        colour = {"rgb": "RGB", "bgr": "BGR", "gray": "gray"}[self.colour]
        return ", ".join(
            filter(None, (colour, resized, self._values(), (self.layout or "").upper()))
        )

    def _values(self) -> str:
        scaled = "0 to 255" if self.scale == 1 else f"* {self.scale:.6g}"
        if self.divisor is not None:
            scaled = f"/ {self.divisor}"
        mean = "" if set(self.mean) == {0.0} else f", mean {_listed(self.mean)}"
        std = "" if set(self.std) == {1.0} else f", std {_listed(self.std)}"
        return scaled + mean + std


_WHOLE = 1e-3
"""How far the inverse of a scale may be from a whole number that is meant by it: nvinfer's files
write 1 / 255 as 0.0039215697906911373, whose inverse is 255 to 1e-5."""


def _listed(values: tuple[float, ...]) -> str:
    return "/".join(f"{value:.4g}" for value in values)


_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

PRESETS: Mapping[str, Preprocessing] = MappingProxyType(
    {
        "imagenet": Preprocessing(
            "shortest-edge", (224, 224), mean=_IMAGENET_MEAN, std=_IMAGENET_STD
        ),
        "inception": Preprocessing("shortest-edge", (299, 299), mean=(0.5,), std=(0.5,)),
        "yolo": Preprocessing("letterbox", (640, 640), resampling="opencv-bilinear"),
        "yolox": Preprocessing(
            "letterbox",
            (640, 640),
            pad="end",
            resampling="opencv-bilinear",
            colour="bgr",
            scale=1.0,
        ),
        "clip": Preprocessing(
            "shortest-edge",
            (224, 224),
            crop=1.0,
            resampling="pillow-bicubic",
            mean=_CLIP_MEAN,
            std=_CLIP_STD,
        ),
        "ppocr-rec": Preprocessing(
            "letterbox",
            (48, 320),
            pad="end",
            pad_value=127.5,
            resampling="opencv-bilinear",
            colour="bgr",
            mean=(0.5,),
            std=(0.5,),
        ),
        "none": Preprocessing("none", scale=1.0),
    }
)
"""By name. Sources: torchvision's ImageNet transforms (resize 256, crop 224); TensorFlow's
inception_preprocessing; Ultralytics' LetterBox; YOLOX's preproc; OpenAI's CLIP; PaddleOCR's
resize_norm_img; pixels as they are."""


def preset_names() -> str:
    """The presets, for help texts and messages."""
    return ", ".join(PRESETS)


def as_setting(how: Preprocessing, *, sized: bool) -> tuple[str, str]:
    """The shortest `--preprocess` that says the same: a preset; or a name for a YAML file and what
    it holds, on one line.

    Args:
        sized: it also says the size, which does not follow from the network.
    """
    ignored = {"source", "guess", "layout"} | (set() if sized else {"size"})
    if how.resize != "shortest-edge":
        ignored |= {"crop", "shortest_edge"}
    if how.resize != "letterbox":
        ignored |= {"pad", "pad_value"}
    names = [f.name for f in fields(Preprocessing) if f.name not in ignored]

    def lines(base: Preprocessing) -> dict[str, object]:
        return {n: getattr(how, n) for n in names if getattr(how, n) != getattr(base, n)}

    bases = {"": lines(Preprocessing())} | {n: lines(base) for n, base in PRESETS.items()}
    preset = min(bases, key=lambda name: len(bases[name]) + bool(name))
    if preset and not bases[preset]:
        return preset, ""
    told = {"preset": preset} if preset else {}
    told |= {name.replace("_", "-"): _written(name, v) for name, v in bases[preset].items()}
    told = told or {"resize": how.resize}  # as if no file was given
    return "how.yaml", f"{{{', '.join(f'{name}: {value}' for name, value in told.items())}}}"


def _written(name: str, value: object) -> str:
    """A value of the YAML file; scales are mostly written as one over something."""
    if isinstance(value, tuple):
        return f"[{', '.join(f'{one:.9g}' for one in value)}]"
    if not isinstance(value, float):
        return str(value)
    inverse = round(1 / value) if name == "scale" and value < 1 else 0
    return f"1/{inverse}" if inverse and value == 1 / inverse else f"{value:.9g}"


def parse_preprocessing(value: object) -> object:
    """The setting: an object, the name of a preset, or the path of a YAML file.

    Raises:
        ValueError: text that is neither.
    """
    if not isinstance(value, str) or isinstance(value, InMemory):
        return value
    known = as_known(value, PRESETS)
    if known not in PRESETS and not value.lower().endswith((".yaml", ".yml")):
        raise ValueError(f"it is neither a YAML file nor one of {preset_names()}")
    return known if known in PRESETS else value


def given_preprocessing(given: str) -> Preprocessing:
    """What a preset, a YAML file or an object in memory says.

    Raises:
        UsageError: the file cannot be read, or says what cannot be.
    """
    if isinstance(given, InMemory):
        in_memory: Preprocessing = given.value
        return replace(in_memory, source=in_memory.source or "given in memory")
    if given in PRESETS:
        return replace(PRESETS[given], source=f"the preset '{given}'")
    from qdebug.yamlfile import read_yaml  # which imports pydantic

    values = read_yaml(Path(given), _schema(), UsageError).model_dump(exclude_unset=True)
    preset = values.pop("preset", None)
    try:
        return replace(PRESETS[preset] if preset else Preprocessing(), **values, source=given)
    except ValueError as error:
        raise UsageError(
            f"{given}: {error}",
            "Correct it; a preset that the file starts from has values of its own.",
            code="QD-USAGE-CONFIG-FILE",
        ) from error


def _schema() -> type[BaseModel]:
    """Of the YAML file: `preset` to start from, and every field under its name with hyphens."""
    from pydantic import BeforeValidator, ConfigDict, Field, create_model

    own = {f.name for f in fields(Preprocessing)} - {"source", "guess"}
    side = Annotated[int, Field(gt=0, le=1 << 16)]
    known: dict[str, Any] = {
        "preset": (Annotated[Literal[tuple(PRESETS)] | None, BeforeValidator(_preset)], None)
    }
    kinds: dict[str, Any] = {
        "resize": ResizeName,
        "size": Annotated[tuple[side, side] | None, BeforeValidator(_pair)],
        "crop": Annotated[float, Field(gt=0, le=1)],
        "shortest_edge": side | None,
        "pad": PadName,
        "pad_value": float,
        "resampling": ResamplingName,
        "colour": ColourName,
        "layout": LayoutName | None,
        "scale": Annotated[float, BeforeValidator(_fraction), Field(gt=0)],
        "mean": Annotated[tuple[float, ...], BeforeValidator(_channels)],
        "std": Annotated[tuple[Annotated[float, Field(gt=0)], ...], BeforeValidator(_channels)],
    }
    assert set(kinds) == own
    known |= {name: (kind, None) for name, kind in kinds.items()}
    options = ConfigDict(
        extra="forbid",
        allow_inf_nan=False,
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
    )
    return create_model("PreprocessingFile", __config__=options, **known)


def _preset(value: object) -> object:
    return as_known(value, PRESETS) if isinstance(value, str) else value


def _pair(value: object) -> object:
    return (value, value) if isinstance(value, int) else value


def _fraction(value: object) -> object:
    """1/255 as it is usually written, or a number."""
    above, slash, below = value.partition("/") if isinstance(value, str) else ("", "", "")
    if slash and float(below) == 0:
        raise ValueError("nothing can be divided by 0")
    return float(above) / float(below) if slash else value


def _channels(value: object) -> object:
    """One value for all channels, or one for each."""
    values = value if isinstance(value, list | tuple) else [value]
    if len(values) not in CHANNELS:
        raise ValueError("it takes one value, or one for each of three channels")
    return tuple(values)


def picture_input(inputs: Sequence[TensorSpec]) -> TensorSpec | None:
    """The only input besides size_input, where it takes pictures: four axes, of which one can be
    that of colours."""
    others = [each for each in inputs if each is not size_input(inputs)]
    if len(others) != 1 or len(others[0].shape) != _PICTURE_AXES:
        return None
    return others[0] if layout_of(others[0]) else None


def size_input(inputs: Sequence[TensorSpec]) -> TensorSpec | None:
    """The input that takes the width and the height by which boxes are scaled, as RT-DETR's own
    exporter writes it (and D-FINE's and DEIM's, which are made from it); None without one."""
    named = (each for each in inputs if each.name == _SIZE_INPUT)
    return next((each for each in named if each.shape[1:] == (2,)), None)


def layout_of(spec: TensorSpec) -> LayoutName | None:
    """Where an input of four axes has its colours, as far as its shape says; None where it has
    none. An axis of any length counts as colours where no other can."""
    first, last = spec.shape[1], spec.shape[3]
    if first in CHANNELS and last not in CHANNELS:
        return "nchw"
    if last in CHANNELS and first not in CHANNELS:
        return "nhwc"
    return "nchw" if first in CHANNELS or not isinstance(first, int) else None


def fixed_size(spec: TensorSpec, layout: LayoutName) -> tuple[int | None, int | None]:
    """The height and the width of an input, None where they are free."""
    height, width = spec.shape[2:] if layout == "nchw" else spec.shape[1:3]
    return (
        height if isinstance(height, int) else None,
        width if isinstance(width, int) else None,
    )


def fixed_channels(spec: TensorSpec, layout: LayoutName) -> int | None:
    """The channels of an input, None where they are free."""
    axis = spec.shape[1 if layout == "nchw" else 3]
    return axis if isinstance(axis, int) else None
