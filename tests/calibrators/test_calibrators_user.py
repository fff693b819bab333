"""The user's own calibrator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from qdebug.calibrators.gather import histogram_of
from qdebug.calibrators.user import load_calibrator
from qdebug.errors import UsageError

HISTOGRAM = histogram_of(np.array([0.5, -4.0, 1.0], np.float32))


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    def write(body: str) -> Path:
        path = tmp_path / "mine.py"
        path.write_text(body)
        return path

    return write


def test_it_gets_the_histogram_and_names_the_method(script: Callable[[str], Path]) -> None:
    path = script("def half(histogram):\n    return histogram.amax / 2\n")
    found = load_calibrator(f"{path}:half")
    assert found.name == "half"
    assert found.amax(HISTOGRAM) == 2.0


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ("def f(h):\n    return h.nothing\n", "raised AttributeError"),
        ("def f(h):\n    return float('nan')\n", "returned nan"),
        ("def f(h):\n    return -1\n", "returned -1"),
        ("def f(h):\n    return 1e39\n", r"returned 1e\+39"),
        ("def f(h):\n    return 'wide'\n", "raised ValueError"),
    ],
)
def test_what_it_may_not_do(script: Callable[[str], Path], body: str, part: str) -> None:
    with pytest.raises(UsageError, match=part):
        load_calibrator(f"{script(body)}:f").amax(HISTOGRAM)


def test_it_cannot_be_found(script: Callable[[str], Path]) -> None:
    path = script("x = 1\n")
    for spec, part in (
        (f"{path}:f", "no function 'f'"),
        (f"{path}", "file.py:function"),
        ("none.py:f", "no such file"),
        ("numpy:max", "file.py:function"),
    ):
        with refused("QD-USAGE-CALIBRATOR-FUNCTION") as error:
            load_calibrator(spec)
        assert part in str(error.value)
    with refused("QD-USAGE-CALIBRATOR-FUNCTION"):
        load_calibrator(f"{script('1 / 0')}:f")
