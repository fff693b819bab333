"""Files that hold one feed each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from qdebug.types import Feeds


class FeedFiles:
    """Files or folders in order, each a feed that `load` reads."""

    def __init__(self, paths: Sequence[Path], load: Callable[[Path], Feeds]) -> None:
        self._paths = paths
        self._load = load

    def read(self, index: int) -> Feeds | None:
        """Feed `index`.

        Raises:
            SampleError: a file that is not of its kind.
        """
        return self._load(self._paths[index]) if index < len(self._paths) else None

    def where(self, index: int) -> str:
        """The file or folder."""
        return str(self._paths[index])


def files_in(folder: Path, ending: str) -> list[Path]:
    """The files of a folder whose names end like that, in order."""
    found = (file for file in folder.iterdir() if file.suffix == ending and file.is_file())
    return sorted(found, key=natural_key)


def natural_key(path: Path) -> tuple[list[int | str], str]:
    """Sorts `img2` before `img10`; ties are broken by the plain name."""
    parts = re.split(r"([0-9]+)", path.name)
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], path.name
