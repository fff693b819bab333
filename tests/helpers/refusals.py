"""Expect an error by its code and by the figures and names in its message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from qdebug.errors import QdebugError


@contextmanager
def refused(code: str, *says: str) -> Iterator[pytest.ExceptionInfo[QdebugError]]:
    """Within, an error of this code is raised, whose text holds each of `says`."""
    with pytest.raises(QdebugError) as caught:
        yield caught
    assert caught.value.code == code
    for text in says:
        assert text in str(caught.value), f"{text!r} is not in: {caught.value}"
