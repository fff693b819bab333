"""What a run file keeps of each sample."""

from __future__ import annotations

import numpy as np
import pytest

from qdebug.analyse.run_file import sample_part


@pytest.mark.parametrize("count", [1, 2])
def test_a_tensor_without_axes_belongs_to_every_sample(count: int) -> None:
    """As sizes that detectors compute from their input's shape."""
    scalar = np.array(3.0, np.float32)
    for index in range(count):
        assert sample_part(scalar, index, count) is scalar


def test_the_leading_axis_is_divided() -> None:
    array = np.arange(12).reshape(4, 3)
    np.testing.assert_array_equal(sample_part(array, 1, 2), array[2:])
    assert sample_part(array, 0, 3) is array  # four rows are not those of three samples
