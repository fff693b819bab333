"""Samples for networks of other people: views of photographs, characters strewn over them, rendered
pages, spoken sentences. Nothing of it is kept in the project.
"""

from __future__ import annotations

import io
import shutil
import string
import subprocess
import wave
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from scipy.signal import lfilter, resample_poly

Array = npt.NDArray[Any]
FONTS = sorted(Path(matplotlib.get_data_path(), "fonts", "ttf").glob("DejaVuS*.ttf"))
FONTS = [path for path in FONTS if "Display" not in path.name]


# --- photographs --------------------------------------------------------------------------------

MEAN, SCALE = 127.0, 128.0
"""The face detector reads (value - MEAN) / SCALE of values from 0 to 255."""
SEED = 20


def views(pictures: Array, count: int) -> Array:
    """The pictures [N, 3, H, W] themselves, then views of each: [count * N, 3, H, W]; the view k is
    of the photograph k modulo N. Errors are by photographs, not by views."""
    made = [pictures]
    for number in range(1, count):
        seeds = ((SEED, number, k) for k in range(len(pictures)))
        pairs = zip(pictures, map(np.random.default_rng, seeds), strict=True)
        made.append(np.stack([_view(*pair) for pair in pairs]))
    return np.concatenate(made).astype(np.float32)


def _view(picture: Array, rng: np.random.Generator) -> Array:
    """A view of [3, H, W] in 0.6 to 1.6 times its size, shifted by up to a fifth, mirrored in half
    of the cases, with other contrast, brightness and gamma. Beyond its edges it is reflected."""
    _, height, width = picture.shape
    size = np.exp(rng.uniform(np.log(0.6), np.log(1.6)))
    shift = rng.uniform(-0.2, 0.2, 2)
    mirrored = rng.random() < 0.5
    rows = (np.arange(height) - height / 2) / size + height * (0.5 + shift[0])
    columns = (np.arange(width) - width / 2) / size + width * (0.5 + shift[1])
    view = _read(_read(picture, rows, 1), columns[::-1] if mirrored else columns, 2)
    light = np.clip(view * SCALE + MEAN, 0, 255) / 255
    light = (light - 0.5) * rng.uniform(0.7, 1.3) + 0.5 + rng.uniform(-0.1, 0.1)
    light = np.clip(light, 0, 1) ** np.exp(rng.uniform(np.log(0.7), np.log(1.4)))
    return np.asarray((np.round(light * 255) - MEAN) / SCALE)


def _read(picture: Array, places: Array, axis: int) -> Array:
    """The values at `places` along an axis, interpolated, reflected beyond the ends."""
    last = picture.shape[axis] - 1
    places = last - np.abs(last - np.mod(places, 2 * last))
    below = np.minimum(places.astype(int), last - 1)
    share = (places - below).reshape((-1, *(1,) * (picture.ndim - 1 - axis)))
    low, high = np.take(picture, below, axis), np.take(picture, below + 1, axis)
    return np.asarray(low * (1 - share) + high * share)


def strewn(photographs: Array, count: int, seed: int, side: int = 416) -> Array:
    """`count` pictures [N, 3, side, side], blue first, from 0 to 255: characters on photographs
    [P, 3, 240, 320] of the face detector in turn, as puzzles for people show them; grey below."""
    made = np.full((count, 3, side, side), 114.0, np.float32)
    for number in range(count):
        rng = np.random.default_rng((seed, number))
        photograph = photographs[number % len(photographs)].transpose(1, 2, 0)
        values = (photograph * SCALE + MEAN).clip(0, 255)
        picture = Image.fromarray(values.round().astype(np.uint8)).resize((side, side * 3 // 4))
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


# --- rendered text ------------------------------------------------------------------------------


def words(rng: np.random.Generator, length: int) -> str:
    """A word or a number."""
    letters = [string.ascii_lowercase, string.ascii_uppercase, string.digits]
    kind = letters[rng.choice(3, p=[0.5, 0.2, 0.3])]
    return "".join(rng.choice([*kind], length))


def rendered(text: str, rng: np.random.Generator, width: int, height: int = 48) -> Image.Image:
    """A line of text as a detector cuts it out, as high as the picture, at its left; dark on light
    or the reverse, slightly turned and blurred."""
    font = ImageFont.truetype(str(rng.choice(FONTS)), 40)
    back, ink = rng.integers(150, 256, 3), rng.integers(0, 110, 3)
    if rng.random() < 0.2:
        back, ink = ink, back
    paper = tuple(map(int, back))
    left, top, right, bottom = (int(x) for x in font.getbbox(text))
    edge = int(rng.integers(3, 9))
    line = Image.new("RGB", (right - left + 2 * edge, bottom - top + 2 * edge), paper)
    draw = ImageDraw.Draw(line)
    draw.text((edge - left, edge - top), text, font=font, fill=tuple(map(int, ink)))
    line = line.rotate(rng.uniform(-1.5, 1.5), Image.Resampling.BILINEAR, fillcolor=paper)
    line = line.resize((min(width, round(line.width * height / line.height)), height))
    image = Image.new("RGB", (width, height), paper)
    image.paste(line, (0, 0))
    return image.filter(ImageFilter.GaussianBlur(rng.uniform(0, 1.2)))


def noisy(image: Image.Image, rng: np.random.Generator) -> Array:
    """[3, H, W] from 0 to 255, with noise of a camera."""
    values = np.asarray(image, np.float32).transpose(2, 0, 1)
    values = values + rng.normal(0, rng.uniform(0, 18), values.shape)
    return np.clip(values.round(), 0, 255).astype(np.float32)


def turned_lines(count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Lines, half of which stand on their head."""
    turned = rng.integers(0, 2, count)
    made = []
    for upside in turned:
        line = rendered(words(rng, int(rng.integers(5, 10))), rng, 192)
        made.append(noisy(line.rotate(180) if upside else line, rng) / 127.5 - 1)
    return np.stack(made), turned


def page(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """A page of lines of words in several sizes."""
    back = rng.integers(200, 256, 3)
    image = Image.new("RGB", (width, height), tuple(map(int, back)))
    draw = ImageDraw.Draw(image)
    y = int(rng.integers(4, 30))
    while y < height - 16:
        size = int(rng.integers(9, 24))
        font = ImageFont.truetype(str(rng.choice(FONTS)), size)
        ink = tuple(map(int, rng.integers(0, 110, 3)))
        said = " ".join(words(rng, int(rng.integers(2, 9))) for _ in range(rng.integers(1, 7)))
        if rng.random() < 0.8:
            draw.text((int(rng.integers(2, 60)), y), said, font=font, fill=ink)
        y += int(size * rng.uniform(1.1, 2.0))
    return image.filter(ImageFilter.GaussianBlur(rng.uniform(0, 1.0)))


PAGE_MEAN = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
PAGE_STD = np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]


def pages(count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Pages of 256 x 256 for a detector of text, which is its own truth."""
    made = [(noisy(page(rng, 256, 256), rng) / 255 - PAGE_MEAN) / PAGE_STD for _ in range(count)]
    return np.stack(made).astype(np.float32), np.zeros(count)


def turned_pages(count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Pages turned by 0, 90, 180 or 270 degrees."""
    turns = rng.integers(0, 4, count)
    made = [
        (noisy(page(rng, 224, 224).rotate(-90 * int(turn)), rng) / 255 - PAGE_MEAN) / PAGE_STD
        for turn in turns
    ]
    return np.stack(made).astype(np.float32), turns


# --- speech -------------------------------------------------------------------------------------

RATE = 16000
CLIP = 144160
"""What DNSMOS reads: 9.01 seconds."""
VOICES = [
    f"{accent}+{speaker}"
    for accent in ("en", "en-us", "en-gb-scotland", "en-gb-x-rp")
    for speaker in ("m1", "m3", "m5", "m7", "f1", "f2", "f4", "f5")
]
SPOKEN = (
    "alexa", "computer", "marvin", "weather", "kitchen", "window", "timer", "music", "garden",
    "seven", "yellow", "morning",
)  # fmt: skip


def can_speak() -> bool:
    """Whether there is a synthesizer."""
    return shutil.which("espeak-ng") is not None


@cache
def speech(text: str, voice: str, speed: int, pitch: int) -> Array:
    """Speech from -1 to 1, float64 [time], at RATE."""
    said = ["espeak-ng", "--stdout", "-v", voice, "-s", str(speed), "-p", str(pitch), text]
    done = subprocess.run(said, capture_output=True, check=True)
    with wave.open(io.BytesIO(done.stdout)) as file:
        rate = file.getframerate()
        values = np.frombuffer(file.readframes(1 << 28), np.int16) / 32768
    return np.asarray(resample_poly(values, RATE // 50, rate // 50))


def clips(count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Sentences of 9 seconds [N, CLIP], clean to noisy, some clipped, some muffled or echoing."""
    made = np.zeros((count, CLIP), np.float32)
    for number in range(count):
        text = " ".join(str(rng.choice(SPOKEN)) for _ in range(24))
        speed, pitch = int(rng.integers(120, 200)), int(rng.integers(20, 80))
        heard = speech(text, str(rng.choice(VOICES)), speed, pitch)
        heard = np.resize(heard, CLIP) * rng.uniform(0.2, 1)
        if rng.random() < 0.3:  # an echo
            delay = int(rng.integers(400, 4000))
            heard[delay:] += rng.uniform(0.2, 0.6) * heard[:-delay]
        if rng.random() < 0.3:  # muffled
            heard = lfilter([1 - 0.8], [1, -0.8], heard)
        noise = lfilter([1], [1, -rng.uniform(0, 0.98)], rng.normal(size=CLIP))
        heard = heard + noise / noise.std() * 10 ** rng.uniform(-4, -1)
        if rng.random() < 0.3:  # too loud
            heard = heard * rng.uniform(2, 6)
        made[number] = np.clip(heard, -1, 1)
    return made, np.zeros(count)
