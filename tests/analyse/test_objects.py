"""Whether FP32 finds anything is told of masks of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdebug.analyse.objects import refuse_nothing
from qdebug.errors import MetricError
from qdebug.metrics.tasks.load import load_metric


def unequal(*planes: Any) -> Any:
    """Samples of sizes of their own."""
    array = np.empty(len(planes), object)
    array[:] = planes
    return array


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_masks_of_whole_numbers(kind: Any) -> None:
    metric = load_metric("miou-to-reference")
    empty = np.zeros((2, 8, 8), kind)
    with pytest.raises(MetricError, match="of class 0 in 2 samples"):
        refuse_nothing(metric, {"y": empty}, 2)
    empty[1, 2, 3] = 4
    refuse_nothing(metric, {"y": empty}, 2)


def test_masks_of_unequal_size() -> None:
    metric = load_metric("miou-to-reference")
    small, large = np.zeros((1, 4, 4), np.float32) - 1, np.zeros((1, 8, 4), np.float32) - 2
    with pytest.raises(MetricError, match="of class 0"):
        refuse_nothing(metric, {"y": unequal(small, large)}, 2)
    large[0, 3, 3] = 2
    refuse_nothing(metric, {"y": unequal(small, large)}, 2)


def test_masks_without_a_number() -> None:
    with pytest.raises(MetricError, match="in 2 samples"):
        nothing = np.full((2, 1, 8, 8), np.nan, np.float32)
        refuse_nothing(load_metric("miou-to-reference"), {"y": nothing}, 2)
