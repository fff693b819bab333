"""More pictures from few, for the face detector: a picture moved, scaled, mirrored and lit anew.

Each variant is one more view of the same photograph. What is measured on them is measured on as
many faces, but on no more photographs: `by_picture` says which ones belong together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
MEAN, SCALE = 127.0, 128.0
"""The network reads (value - MEAN) / SCALE of values from 0 to 255."""
SEED = 20


def variants(pictures: Array, count: int) -> Array:
    """The pictures [N, 3, H, W] themselves, then variants of each: [count * N, 3, H, W]."""
    made = [pictures]
    for number in range(1, count):
        made.append(
            np.stack(
                [
                    _variant(picture, np.random.default_rng((SEED, number, k)))
                    for k, picture in enumerate(pictures)
                ]
            )
        )
    return np.concatenate(made).astype(np.float32)


def by_picture(count: int, pictures: int) -> Array:
    """Of which picture each of `count` variants is: int [count]."""
    return np.arange(count) % pictures


def _variant(picture: Array, rng: np.random.Generator) -> Array:
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
    return (np.round(light * 255) - MEAN) / SCALE


def _read(picture: Array, places: Array, axis: int) -> Array:
    """The values at `places` along an axis, interpolated, reflected beyond the ends."""
    last = picture.shape[axis] - 1
    places = last - np.abs(last - np.mod(places, 2 * last))
    below = np.minimum(places.astype(int), last - 1)
    share = (places - below).reshape((-1, *(1,) * (picture.ndim - 1 - axis)))
    low, high = np.take(picture, below, axis), np.take(picture, below + 1, axis)
    return low * (1 - share) + high * share
