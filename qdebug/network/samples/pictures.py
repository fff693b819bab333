"""Pictures in place of arrays: a function to start from, which loads them for a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from qdebug.errors import SampleError
from qdebug.types import TensorSpec

SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif"))
_SIZE = 224
"""Where the model's own size is not fixed."""
_PICTURE_AXES = 4
_CHANNELS = (1, 3)


def picture_suffix(files: Iterable[Path]) -> str:
    """The ending of the first picture among `files`; "" for none."""
    return next((f.suffix for f in files if f.suffix.lower() in SUFFIXES), "")


def refuse_pictures(path: Path, suffix: str, inputs: Sequence[TensorSpec]) -> SampleError:
    """The error of pictures given as samples: how to preprocess them is the user's to say.

    Args:
        path: a folder of them, or one.
        suffix: how their names end.
        inputs: of the model.
    """
    return SampleError(
        f"{path}: {'holds pictures' if path.is_dir() else 'is a picture'} ({suffix}), and how to "
        "turn one into the model's input is not in the model.",
        "Write a function that loads them as they were loaded in training, and give loader.py:"
        f"load_data. To start from, in loader.py:\n{_example(path, suffix, inputs)}\n"
        "  'Pictures' in docs/reference/data.md says more.",
        code="QD-SAMPLES-FORMAT",
    )


def _example(path: Path, suffix: str, inputs: Sequence[TensorSpec]) -> str:
    spec = next((s for s in inputs if len(s.shape) == _PICTURE_AXES), inputs[0])
    last = spec.shape[-1] in _CHANNELS and len(spec.shape) == _PICTURE_AXES
    gray = 1 in (spec.shape[-1:] if last else spec.shape[1:2])
    height, width = (
        axis if isinstance(axis, int) and axis > 1 else _SIZE
        for axis in (spec.shape[1:3] if last else (*spec.shape[2:4], None, None)[:2])
    )
    if gray:
        array = "pixels[None, :, :, None]" if last else "pixels[None, None]"
    else:
        array = "pixels[None]" if last else "pixels.transpose(2, 0, 1)[None]"
    pattern = f"*{suffix}" if path.is_dir() else path.name
    folder = path if path.is_dir() else path.parent
    scaled = " / 255" if spec.dtype.kind == "f" else ""
    lines = (
        "from pathlib import Path",
        "import numpy as np",
        "from PIL import Image",
        "",
        "def load_data():",
        f"    for file in sorted(Path({str(folder)!r}).glob({pattern!r})):",
        f"        image = Image.open(file).convert({'L' if gray else 'RGB'!r})",
        f"        pixels = np.asarray(image.resize(({width}, {height})), np.{spec.dtype}){scaled}",
        f"        yield {{{spec.name!r}: {array}}}",
    )
    return "\n".join(f"    {line}".rstrip() for line in lines)
