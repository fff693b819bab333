"""Pictures for detectors of characters: a few characters strewn over a photograph, as puzzles for
people show them; and what a network of YOLOX's kind says of them.

The photographs are those of the face detector, each set of samples on others. Nothing of it is
kept in the project.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import face_variants
import matplotlib
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont
from yardstick_tasks import Arrays, Candidates, corners, only

Array = npt.NDArray[Any]
SIZE = 416
STRIDES = (8, 16, 32)
FONTS = sorted(Path(matplotlib.get_data_path(), "fonts", "ttf").glob("DejaVuS*.ttf"))
FONTS = [path for path in FONTS if "Display" not in path.name]


def yolox_cells(outputs: Arrays) -> Candidates:
    """[N, A, 5+C] as YOLOX exports it: centre and logarithm of the size in cells of STRIDES,
    objectness, classes."""
    rows = only(outputs).astype(np.float64)
    grids, steps = [], []
    for stride in STRIDES:
        count = SIZE // stride
        grids.append(np.stack(np.meshgrid(np.arange(count), np.arange(count)), 2).reshape(-1, 2))
        steps.append(np.full((count * count, 1), stride))
    grid, step = np.concatenate(grids), np.concatenate(steps)
    centre, size = (rows[..., :2] + grid) * step, np.exp(np.minimum(rows[..., 2:4], 20)) * step
    boxes = corners(np.concatenate([centre, size], axis=-1))
    return Candidates(boxes, rows[..., 4:5] * rows[..., 5:])


def strewn(photographs: Array, count: int, seed: int) -> Array:
    """`count` pictures [N, 3, 416, 416], blue first, from 0 to 255, on photographs [P, 3, 240, 320]
    of the face detector in turn; grey below them."""
    made = np.full((count, 3, SIZE, SIZE), 114.0, np.float32)
    for number in range(count):
        rng = np.random.default_rng((seed, number))
        photograph = photographs[number % len(photographs)].transpose(1, 2, 0)
        values = (photograph * face_variants.SCALE + face_variants.MEAN).clip(0, 255)
        picture = Image.fromarray(values.round().astype(np.uint8)).resize((SIZE, SIZE * 3 // 4))
        _strew(picture, rng)
        noise = rng.normal(0, rng.uniform(0, 8), (picture.height, picture.width, 3))
        pixels = (np.asarray(picture, np.float32) + noise).round().clip(0, 255)
        made[number, :, : picture.height] = pixels.transpose(2, 0, 1)[::-1]
    return made


def _strew(picture: Image.Image, rng: np.random.Generator) -> None:
    """Three to seven characters of their own colour, size and angle, none on another."""
    taken: list[tuple[float, float]] = []
    for _ in range(int(rng.integers(3, 8))):
        size = int(rng.integers(34, 64))
        font = ImageFont.truetype(str(rng.choice(FONTS)), size)
        ink = tuple(int(x) for x in rng.integers(0, 256, 3))
        around = tuple(int(x) for x in rng.integers(0, 256, 3))
        tile = Image.new("RGBA", (2 * size, 2 * size))
        character = str(rng.choice([*string.ascii_uppercase, *string.digits]))
        edge = int(rng.integers(0, 3))
        ImageDraw.Draw(tile).text(
            (size, size), character, ink, font, "mm", stroke_width=edge, stroke_fill=around
        )
        tile = tile.rotate(rng.uniform(-45, 45), Image.Resampling.BICUBIC)
        x, y = rng.uniform(size / 2, [picture.width - size / 2, picture.height - size / 2])
        if all(max(abs(x - a), abs(y - b)) > 60 for a, b in taken):
            taken.append((x, y))
            picture.paste(tile, (round(x) - size, round(y) - size), tile)
