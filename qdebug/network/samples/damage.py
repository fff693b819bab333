"""The one edge for data that are damaged, cut off or of another kind: libraries raise whatever such
a file leads them to, and the message names the file, the reason and the next step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qdebug.errors import QdebugError, SampleError, is_about_memory


@contextmanager
def reading(
    where: str | Path,
    repair: str = "Copy or save the file again.",
    code: str = "QD-SAMPLES-DAMAGED",
) -> Iterator[None]:
    """Read data within.

    Args:
        where: what is read, for the message.
        repair: the next step.
        code: of the error.

    Raises:
        SampleError: in the place of any foreign error.
        QdebugError: as within.
        MemoryError: the memory does not suffice, which is no fault of the data.
    """
    try:
        yield
    except QdebugError:
        raise
    except Exception as error:
        if is_about_memory(error):
            raise
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise SampleError(
            f"{where}: cannot be read: damaged, cut off or of another kind ({reason}).",
            repair,
            code=code,
        ) from error
