"""float32 becomes float16 as numpy rounds it, bit for bit, compiled or not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdebug.store import rows

Bits = npt.NDArray[np.uint32]
EDGES = (
    0, 1, 0x33000000, 0x33000001, 0x33800000, 0x387FDFFF, 0x387FE000, 0x387FFFFF, 0x38800000,
    0x477FE000, 0x477FEFFF, 0x477FF000, 0x47800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x7FFFFFFF,
)  # fmt: skip
"""Zero, around the smallest, the subnormals' end and the largest, infinity, NaN."""


def both_signs(bits: Bits) -> Bits:
    return np.concatenate([bits, bits | np.uint32(0x80000000)])


def bits_of(values: Bits) -> npt.NDArray[np.uint16]:
    """numpy's rounding, as bits."""
    with np.errstate(all="ignore"):
        return values.view(np.float32).astype(np.float16).view(np.uint16)


def compiled(values: Bits) -> tuple[npt.NDArray[np.uint16], bool]:
    native = rows.native_narrow
    if native is None:
        pytest.skip("the C module was not built")
    into = np.empty(len(values), np.float16)
    over = native(values.view(np.float32), into)
    return into.view(np.uint16), over


def assert_as_numpy(values: Bits) -> None:
    found, over = compiled(values)
    nan = np.isnan(values.view(np.float32))
    np.testing.assert_array_equal(found[~nan], bits_of(values)[~nan])
    # numpy leaves a signalling NaN signalling; the hardware makes it quiet.
    assert np.isnan(found[nan].view(np.float16)).all()
    magnitude = values & np.uint32(0x7FFFFFFF)
    assert over == bool(((magnitude >= 0x477FF000) & (magnitude < 0x7F800000)).any())


@settings(deadline=None)
@given(bits=st.lists(st.sampled_from(EDGES) | st.integers(0, 2**31 - 1), max_size=40))
def test_any_bits_of_any_length(bits: list[int]) -> None:
    # Fewer than 8 at the end go another way than the rest: every length puts them elsewhere.
    assert_as_numpy(both_signs(np.array(bits, np.uint32)))


@pytest.mark.parametrize("low", [0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF])
@pytest.mark.parametrize("step", [8, 1])
def test_every_float16_and_its_neighbours(low: int, step: int) -> None:
    # All the float32 whose upper 19 bits differ, vectorised, and one by one.
    values = both_signs(np.arange(1 << 18, dtype=np.uint32) << np.uint32(13) | np.uint32(low))
    if step == 8:
        assert_as_numpy(values)
    else:
        one_by_one = values[:: len(values) // 4000]
        found = [compiled(one_by_one[i : i + 1])[0][0] for i in range(len(one_by_one))]
        nan = np.isnan(one_by_one.view(np.float32))
        np.testing.assert_array_equal(np.array(found)[~nan], bits_of(one_by_one)[~nan])


@pytest.mark.parametrize("native", [True, False])
def test_a_tensor_stays_wide_only_where_a_finite_value_would_become_infinite(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(rows, "native_narrow", None)
    for value, dtype in (
        (65519.9, np.float16), (-65520.0, np.float32), (np.inf, np.float16), (np.nan, np.float16),
    ):  # fmt: skip
        array = np.full((3, 5), value, np.float32)
        found = rows.storable("a", array, "float16")
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, array.astype(dtype))


def test_arrays_that_do_not_fit_are_refused() -> None:
    if rows.native_narrow is None:
        pytest.skip("the C module was not built")
    values, into = np.zeros(8, np.float32), np.zeros(8, np.float16)
    for wrong in ((values, into[:7]), (values.astype(np.float64), into)):
        with pytest.raises(ValueError, match="float16 array of one size"):
            rows.native_narrow(*wrong)
    with pytest.raises(ValueError, match="contiguous"):
        rows.native_narrow(values[::2], into[:4])
    into.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        rows.native_narrow(values, into)
