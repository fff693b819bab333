"""Files that workers read: where the command has them, and what they hold."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import NoReturn

from qdebug.errors import ClusterError

_BLOCKS, _BLOCK_BYTES = 64, 1 << 20
"""Of files that are larger together, so many blocks, spread evenly over all, stand for them: every
worker reads them."""


@dataclass(frozen=True)
class SharedFile:
    """A file with what lies beside it, or a folder.

    Attributes:
        folder: absolute.
        names: the files in it, by their paths within it.
        main: the one that is opened, by its path within the folder; "" for the folder itself.
        digest: SHA-256 of names, sizes and contents, of large files of blocks of them.
        made: the command wrote it, to its folder for temporary files.
    """

    folder: str
    names: tuple[str, ...]
    main: str
    digest: str
    made: bool = False

    @property
    def path(self) -> str:
        """What is opened."""
        return str(Path(self.folder) / self.main)

    def checked(self) -> str:
        """The path, where this process sees what the command saw.

        Raises:
            ClusterError: it sees nothing, or something else.
        """
        folder = Path(self.folder)
        try:
            there = self.main or _files_in(folder) == self.names
            digest = _known_digest(self.folder, self.names, _stamps(folder, self.names))
        except OSError as error:
            fail_not_seen(self.path, error, made=self.made)
        if not there or digest != self.digest:
            raise ClusterError(
                f"{_here()} sees other content in {self.path} than the command",
                "Leave the files of a command as they are until it has ended, and let all "
                "machines see the same ones.",
                code="QD-CLUSTER-FILE-CHANGED",
            )
        return self.path


def shared_file(path: str | Path, beside: Sequence[str] = (), *, made: bool = False) -> SharedFile:
    """A file, with others of its folder that belong to it; or a whole folder.

    Raises:
        OSError: one of them cannot be read.
    """
    path = Path(path).absolute()
    if path.is_dir():
        names = _files_in(path)
        return SharedFile(str(path), names, "", _digest(path, names), made)
    names = path.name, *beside
    return SharedFile(str(path.parent), names, path.name, _digest(path.parent, names), made)


def fail_not_seen(path: str, error: OSError, *, made: bool) -> NoReturn:
    """A worker does not see a file.

    Args:
        made: see SharedFile.

    Raises:
        ClusterError: always.
    """
    raise ClusterError(
        f"{_here()} does not see {path}: {error.strerror}",
        "Set TMPDIR to a folder that the command and its workers see."
        if made
        else "Put it on a drive that all machines see at the same path.",
        code="QD-CLUSTER-FILE-NOT-SEEN",
    ) from error


def _here() -> str:
    from distributed import get_worker

    try:
        return f"the worker {get_worker().address}"
    except ValueError:
        return "this process"


def _files_in(folder: Path) -> tuple[str, ...]:
    files = (Path(base) / name for base, _, names in os.walk(folder) for name in names)
    return tuple(sorted(file.relative_to(folder).as_posix() for file in files))


def _stamps(folder: Path, names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """What changes with a file, as far as the system tells."""
    found = ((folder / name).stat() for name in names)
    return tuple((s.st_size, s.st_mtime_ns, s.st_ino, s.st_dev) for s in found)


@lru_cache(maxsize=256)
def _known_digest(folder: str, names: tuple[str, ...], _: tuple[tuple[int, ...], ...]) -> str:
    return _digest(Path(folder), names)


def _digest(folder: Path, names: Sequence[str]) -> str:
    sizes = [(folder / name).stat().st_size for name in names]
    found = hashlib.sha256(repr([*zip(names, sizes, strict=True)]).encode())
    for number, start in _blocks(sizes):
        with (folder / names[number]).open("rb") as file:
            file.seek(start)
            found.update(file.read(_BLOCK_BYTES))
    return found.hexdigest()


def _blocks(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The blocks that stand for files of these sizes: the number of a file, and where in it."""
    ends = list(accumulate(sizes))
    if not ends or ends[-1] <= _BLOCKS * _BLOCK_BYTES:
        for number, size in enumerate(sizes):
            yield from ((number, start) for start in range(0, size, _BLOCK_BYTES))
        return
    for block in range(_BLOCKS):
        place = block * (ends[-1] - _BLOCK_BYTES) // (_BLOCKS - 1)
        number = next(k for k, end in enumerate(ends) if place < end)
        yield number, place - (ends[number] - sizes[number])
