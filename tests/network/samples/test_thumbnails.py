"""Pictures made small for people: the same picture again, and never large."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdebug.network.preprocessing import PRESETS, Preprocessing
from qdebug.network.samples.pictures import picture_as_input
from qdebug.network.samples.thumbnails import pixels_of, thumbnail

images = pytest.importorskip("PIL.Image")


def opened(url: str) -> Any:
    return images.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("preset", ["imagenet", "yolox", "inception"])
def test_preprocessing_is_undone(preset: str, layout: Any, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype(np.uint8)
    known = PRESETS[preset]
    how = Preprocessing(
        "none",
        colour=known.colour,
        layout=layout,
        scale=known.scale,
        mean=known.mean,
        std=known.std,
    )
    images.fromarray(pixels).save(tmp_path / "picture.png")
    values = picture_as_input(tmp_path / "picture.png", how, np.dtype(np.float32))
    assert np.array_equal(pixels_of(values, how, layout), pixels)


def test_values_whose_preprocessing_is_not_known() -> None:
    ramp = np.linspace(0, 1, 256, dtype=np.float32).reshape(1, 16, 16)
    expected = np.arange(256).reshape(16, 16, 1)
    for values in (ramp, ramp * 255, ramp * 7 - 3):  # 0 to 1, 0 to 255, anything else
        assert np.abs(pixels_of(values, None, "nchw") - expected.astype(int)).max() <= 1
    broken = np.full((3, 4, 4), np.nan, np.float32)
    assert pixels_of(broken, None, "nchw").max() == 0


def test_a_thumbnail_is_small() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (900, 1200, 3)).astype(np.uint8)
    url = thumbnail(noise)
    assert len(url) < 33_000
    assert url.startswith("data:image/jpeg;base64,")
    width, height = opened(url).size
    assert 100 < width <= 320
    assert width / height == pytest.approx(4 / 3, rel=0.02)
    assert opened(thumbnail(noise[:90, :120, :1])).size == (120, 90)
