"""Files that hold one feed each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from qdebug.types import Feeds

T = TypeVar("T")


class FeedFiles(Generic[T]):
    """Files, folders or parts of files in order, each a feed that `load` reads."""

    def __init__(
        self, parts: Sequence[T], load: Callable[[T], Feeds], name: Callable[[T], str] = str
    ) -> None:
        self._parts, self._load, self._name = parts, load, name

    def read(self, index: int) -> Feeds | None:
        """Feed `index`.

        Raises:
            SampleError: a file that is not of its kind.
        """
        return self._load(self._parts[index]) if index < len(self._parts) else None

    def where(self, index: int) -> str:
        """The file or folder."""
        return self._name(self._parts[index])


def files_in(folder: Path, ending: str) -> list[Path]:
    """The files of a folder whose names end like that, in order."""
    found = (file for file in folder.iterdir() if file.suffix == ending and file.is_file())
    return sorted(found, key=natural_key)


def natural_key(path: Path) -> tuple[list[int | str], str]:
    """Sorts `img2` before `img10`; ties are broken by the plain name."""
    parts = re.split(r"([0-9]+)", path.name)
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], path.name
