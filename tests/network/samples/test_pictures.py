"""Pictures as inputs: against Pillow's, OpenCV's and NumPy's own calls."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from qdebug.errors import UsageError
from qdebug.network.preprocessing import PRESETS, Preprocessing, given_preprocessing
from qdebug.network.samples.file_set import UnreadableError
from qdebug.network.samples.pictures import (
    boxes_as_input,
    mask_as_input,
    picture_as_input,
    size_of,
)

NUMBERS = itertools.count()
FLOAT = np.dtype(np.float32)
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def encoded(image: Image.Image, kind: str = "png", **how: Any) -> Path:
    file = Path(f"{next(NUMBERS)}.{kind}")
    image.save(file, kind, **how)
    return file


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of each test are written there."""
    monkeypatch.chdir(tmp_path)


def noise(height: int, width: int, channels: int = 3) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(height * width)
    return rng.integers(0, 256, (height, width, channels), dtype=np.uint8)


@pytest.fixture
def picture() -> np.ndarray[Any, Any]:
    return noise(37, 53)


def test_imagenet(picture: np.ndarray[Any, Any]) -> None:
    """torchvision: Resize(32) of the shortest edge, CenterCrop(28), ToTensor, Normalize."""
    how = replace(PRESETS["imagenet"], size=(28, 28), layout="nchw")
    small = Image.fromarray(picture).resize((32 * 53 // 37, 32), Image.Resampling.BILINEAR)
    pixels = np.asarray(small)[2:30, round((45 - 28) / 2) :][:, :28]
    mean, std = (np.array(v, np.float32) for v in IMAGENET)
    expected = (pixels.astype(np.float32) / np.float32(255) - mean) / std
    assert np.array_equal(
        picture_as_input(encoded(Image.fromarray(picture)), how, FLOAT), expected.transpose(2, 0, 1)
    )


@pytest.mark.parametrize("preset", ["yolo", "yolox"])
def test_letterboxes(picture: np.ndarray[Any, Any], preset: str) -> None:
    """Ultralytics' LetterBox: in the middle, RGB / 255; YOLOX's preproc: at the top left, BGR."""
    cv2 = pytest.importorskip("cv2")
    how = replace(PRESETS[preset], size=(32, 32), layout="nchw")
    small = cv2.resize(picture, (32, 22), interpolation=cv2.INTER_LINEAR)  # 37 * 32 / 53 = 22.3
    canvas = np.full((32, 32, 3), 114, np.uint8)
    top = 5 if preset == "yolo" else 0
    canvas[top : top + 22] = small
    expected = canvas.astype(np.float32) / np.float32(255)
    if preset == "yolox":
        expected = canvas[:, :, ::-1].astype(np.float32)
    found = picture_as_input(encoded(Image.fromarray(picture)), how, FLOAT)
    assert np.array_equal(found, expected.transpose(2, 0, 1))


def test_clip_and_inception(picture: np.ndarray[Any, Any]) -> None:
    image = Image.fromarray(picture)
    clip = replace(PRESETS["clip"], size=(24, 24), layout="nhwc", mean=(0.0,), std=(1.0,))
    small = np.asarray(image.resize((24 * 53 // 37, 24), Image.Resampling.BICUBIC))[:, 5:29]
    assert np.array_equal(
        picture_as_input(encoded(image), clip, FLOAT), small.astype(np.float32) / np.float32(255)
    )
    inception = replace(PRESETS["inception"], size=(28, 28), layout="nhwc")
    found = picture_as_input(encoded(image), inception, FLOAT)
    assert -1 <= found.min() < -0.5 and 0.5 < found.max() <= 1


@pytest.mark.parametrize("name", ["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"])
def test_filters_of_pillow(picture: np.ndarray[Any, Any], name: str) -> None:
    image = Image.fromarray(picture)
    how = Preprocessing("exact", (20, 31), resampling=f"pillow-{name}", layout="nhwc", scale=1.0)  # type: ignore[arg-type]
    expected = np.asarray(image.resize((31, 20), Image.Resampling[name.upper()]))
    assert np.array_equal(picture_as_input(encoded(image), how, FLOAT), expected)


@pytest.mark.parametrize(
    ("name", "flag"),
    [("nearest", "NEAREST"), ("bicubic", "CUBIC"), ("area", "AREA"), ("lanczos", "LANCZOS4")],
)
def test_filters_of_opencv(picture: np.ndarray[Any, Any], name: str, flag: str) -> None:
    cv2 = pytest.importorskip("cv2")
    how = Preprocessing("exact", (20, 31), resampling=f"opencv-{name}", layout="nhwc", scale=1.0)  # type: ignore[arg-type]
    expected = cv2.resize(picture, (31, 20), interpolation=getattr(cv2, f"INTER_{flag}"))
    assert np.array_equal(picture_as_input(encoded(Image.fromarray(picture)), how, FLOAT), expected)


def test_what_is_read_of_unusual_pictures(picture: np.ndarray[Any, Any]) -> None:
    how = Preprocessing("none", scale=1.0, layout="nhwc")

    def read(image: Image.Image, kind: str = "png", **saved: Any) -> Any:
        return picture_as_input(encoded(image, kind, **saved), how, np.dtype(np.uint8))

    rgb = Image.fromarray(picture)
    gray = rgb.convert("L")
    assert np.array_equal(read(gray), np.asarray(gray.convert("RGB")))
    with_alpha = rgb.convert("RGBA")
    with_alpha.putalpha(7)
    assert np.array_equal(read(with_alpha), picture)
    cmyk = rgb.convert("CMYK")
    assert np.array_equal(read(cmyk, "tiff"), np.asarray(cmyk.convert("RGB")))
    deep = Image.fromarray(np.asarray(gray).astype(np.uint16) * 257)
    assert np.array_equal(read(deep), np.asarray(gray.convert("RGB")))
    frames = [Image.fromarray(np.full((4, 4, 3), v, np.uint8)) for v in (0, 255)]
    assert read(frames[0], "gif", save_all=True, append_images=frames[1:]).max() == 0
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = encoded(rgb, exif=exif)
    assert size_of(turned) == (53, 37)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(turned)))
    assert np.array_equal(picture_as_input(turned, how, np.dtype(np.uint8)), expected)


def test_what_is_no_picture(monkeypatch: pytest.MonkeyPatch, picture: np.ndarray[Any, Any]) -> None:
    how = Preprocessing("none")
    whole = encoded(Image.fromarray(picture))
    for data in (b"", b"text", whole.read_bytes()[: whole.stat().st_size // 2]):
        Path("damaged.png").write_bytes(data)
        with pytest.raises(UnreadableError):
            picture_as_input(Path("damaged.png"), how, FLOAT)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(UnreadableError, match="too many pixels"):
        picture_as_input(whole, how, FLOAT)


def test_a_full_memory_is_no_fault_of_a_picture(
    monkeypatch: pytest.MonkeyPatch, picture: np.ndarray[Any, Any]
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Image.Image, "convert", fail)
    with pytest.raises(MemoryError):
        picture_as_input(encoded(Image.fromarray(picture)), Preprocessing("none"), FLOAT)


@given(
    st.sampled_from(["exact", "letterbox", "shortest-edge"]),
    st.sampled_from(["both", "end"]),
    st.integers(20, 90),
    st.integers(20, 90),
)
def test_boxes_and_masks_lie_where_the_picture_does(
    resize: Any, pad: Any, height: int, width: int
) -> None:
    """A bright rectangle, its box and its mask, after resizing: the same to a pixel."""
    how = Preprocessing(resize, (48, 40), pad=pad, pad_value=0.0, scale=1.0, layout="nhwc")
    top, left, bottom, right = height // 4, width // 4, 3 * height // 4, 3 * width // 4
    pixels = np.zeros((height, width), np.uint8)
    pixels[top:bottom, left:right] = 255
    box = boxes_as_input(np.array([[left, top, right, bottom]]), how, (height, width))[0]
    mask = mask_as_input(encoded(Image.fromarray((pixels > 0).astype(np.uint8))), how)
    found = picture_as_input(encoded(Image.fromarray(pixels).convert("RGB")), how, FLOAT)[:, :, 0]
    for seen in (found > 127, mask == 1):
        rows, columns = np.nonzero(seen.any(1))[0], np.nonzero(seen.any(0))[0]
        around = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
        assert np.abs(np.array(around) - box).max() <= 1.6


def test_a_file_of_preprocessing(tmp_path: Path) -> None:
    (tmp_path / "how.yaml").write_text(
        "preset: imagenet\nsize: 320\nscale: 1/128\nmean: 0.5\nstd: [1, 2, 3]\ncolour: bgr\n"
    )
    found = given_preprocessing(str(tmp_path / "how.yaml"))
    assert (found.resize, found.size, found.scale) == ("shortest-edge", (320, 320), 1 / 128)
    assert (found.mean, found.std, found.colour) == ((0.5,), (1.0, 2.0, 3.0), "bgr")
    assert "BGR" in found.told() and "/ 128" in found.told()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("scale: 1/0\n", "divided by 0"),
        ("scale: .inf\n", "finite"),
        ("std: 0\n", "greater than 0"),
        ("mean: [1, 2]\n", "one for each of three"),
        ("preset: imagenet\ncolour: gray\n", "mean has 3 values, where colour 'gray' takes 1"),
        ("colour: gray\nstd: [1, 2, 3]\n", "std has 3 values"),
    ],
)
def test_a_file_that_says_what_cannot_be(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "how.yaml").write_text(text)
    with pytest.raises(UsageError, match=says) as caught:
        given_preprocessing(str(tmp_path / "how.yaml"))
    assert caught.value.code == "QD-USAGE-CONFIG-FILE"


@pytest.mark.parametrize(
    ("scale", "divisor", "told"),
    [
        (1 / 255, 255, "/ 255"),
        (0.0039215697906911373, 255, "/ 255"),  # as nvinfer's files write it
        (0.017, None, "* 0.017"),
        (1.0, None, "0 to 255"),
        (2.0, None, "* 2"),
    ],
)
def test_a_scale_that_is_a_division(scale: float, divisor: int | None, told: str) -> None:
    """A division is rounded otherwise than the product with its inverse."""
    how = Preprocessing("none", scale=scale, layout="nhwc")
    assert how.divisor == divisor and told in how.told()
    pixel = Image.new("RGB", (1, 1), (77, 78, 79))
    expected = np.array([77, 78, 79], np.float32)
    expected = expected / np.float32(divisor) if divisor else expected * np.float32(scale)
    assert np.array_equal(picture_as_input(encoded(pixel), how, FLOAT)[0, 0], expected)
