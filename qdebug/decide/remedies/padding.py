"""Positions that no output depends on: padding. What is fitted to them is fitted to nothing.

A sequence that is shorter than the others is filled up, and an input of zeros and ones (an
attention mask) says where. Four of five positions may be padding, and would decide what is fitted.
Whether the outputs really do not depend on them is tried: other values are put there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

import numpy as np
import numpy.typing as npt

from qdebug.backends.base import Backend
from qdebug.network.graph import Graph
from qdebug.types import Array, Feeds, Tensors

Mask = npt.NDArray[np.bool_]

_SAME = 1e-5
"""Outputs that differ by less, of their largest magnitude, are the same."""


def used_positions(
    backend: Backend, graph: Graph, feeds: Sequence[Mapping[str, Array]]
) -> list[Mask] | None:
    """Which positions the outputs depend on, of each execution, bool [batch, positions]; None where
    the inputs do not say, or where the outputs were seen to depend on the others too.

    Raises:
        BackendError: the network does not run.
    """
    for name in feeds[0] if feeds else ():
        masks = [one[name] for one in feeds]
        if not all(map(_is_mask, masks)) or all(mask.all() for mask in masks):
            continue
        used = [mask.astype(bool) for mask in masks]
        first = int(np.argmin([mask.mean() for mask in used]))
        changed = _elsewhere(feeds[first], name, used[first])
        if changed is None:
            continue
        with closing(backend.open(graph.proto, ())) as session:
            same = _alike(session.run(feeds[first]), session.run(changed))
        if same:
            return used
    return None


def without_padding(values: list[Array], used: list[Mask] | None) -> list[Array]:
    """The rows of `values` [batch, positions, channels] or [batch · positions, channels] that are
    used, each [rows, channels]; `values` themselves where they are of no such shape."""
    if used is None or not values:
        return values
    fits = all(
        array.shape[:-1] in (mask.shape, (mask.size,)) and mask.any()
        for array, mask in zip(values, used, strict=True)
    )
    if not fits:
        return values
    return [
        array.reshape(-1, array.shape[-1])[mask.reshape(-1)]
        for array, mask in zip(values, used, strict=True)
    ]


def _is_mask(values: Array) -> bool:
    two = values.ndim == 2 and values.size > 0
    return two and bool(np.all((values == 0) | (values == 1)))


def _elsewhere(feeds: Mapping[str, Array], mask_name: str, used: Mask) -> Feeds | None:
    """`feeds` with values of used positions at all others; None where no input has such."""
    rows = [np.flatnonzero(row) for row in used]
    if any(len(row) == 0 for row in rows):
        return None
    changed: dict[str, Array] = dict(feeds)
    moved = False
    for name, array in feeds.items():
        if name == mask_name or array.shape != used.shape or _is_mask(array):
            continue
        other = array.copy()
        for row, mask, positions in zip(other, used, rows, strict=True):
            row[~mask] = np.resize(row[positions[::-1]], int((~mask).sum()))
        changed[name] = other
        moved = moved or not np.array_equal(other, array)
    return changed if moved else None


def _alike(one: Tensors, other: Tensors) -> bool:
    for name, expected in one.items():
        found = other[name]
        if expected.dtype.kind != "f":
            if not np.array_equal(expected, found):
                return False
            continue
        largest = float(np.abs(expected).max(initial=0.0))
        if expected.shape != found.shape or not np.allclose(
            expected, found, rtol=0, atol=_SAME * largest, equal_nan=True
        ):
            return False
    return True
