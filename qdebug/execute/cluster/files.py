"""Files that workers read: where they are, what they hold, and where a worker finds the same."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path

_WHOLE_BYTES = 256 << 20
_BLOCKS, _BLOCK_BYTES = 256, 1 << 20
"""Of more, so many blocks, spread evenly over all files, stand for them."""
_RECENT_S = 2.0
"""A file that was written so shortly ago may be written again without a later time of change."""


@dataclass(frozen=True)
class SharedFile:
    """A file with what lies beside it, or a folder.

    Attributes:
        folder: the folder on the client, absolute.
        names: the files in it, by their paths within it.
        main: the one that is opened, by its path within the folder; "" for the folder itself.
        digest: SHA-256 of names, sizes and contents; of more than 256 MB, of 256 blocks of them.
        place: see `_place`.
    """

    folder: str
    names: tuple[str, ...]
    main: str
    digest: str
    place: str = ""

    def find(self, inbox: Path) -> str | None:
        """The path of the same content on this machine: where the client has it, or in the folder
        for what was received. None where there is none."""
        for folder in (Path(self.folder), inbox / self.digest):
            if self._is_in(folder):
                return str(folder / self.main)
        return None

    @property
    def path(self) -> Path:
        """Where the client has what is opened."""
        return Path(self.folder) / self.main

    def is_there(self) -> bool:
        """Whether the client still has this content."""
        return self._is_in(Path(self.folder))

    def _is_in(self, folder: Path) -> bool:
        if not self.main and _files_in(folder) != self.names:
            return False  # samples are what is in the folder, all of it
        same = bool(self.place) and _place(folder, self.names) == self.place
        return same or _found_digest(str(folder), self.names) == self.digest

    def chunks(self, size: int) -> Iterator[tuple[str, int, bytes]]:
        """The content: the name of a file, an offset, and at most `size` bytes from there."""
        for name in self.names:
            with (Path(self.folder) / name).open("rb") as file:
                offset = 0
                while (data := file.read(size)) or not offset:
                    yield name, offset, data
                    offset += len(data)
                    if not data:
                        break


def shared_file(path: str | Path, beside: Sequence[str] = ()) -> SharedFile:
    """A file, with others of its folder that belong to it; or a whole folder.

    Raises:
        OSError: one of them cannot be read.
    """
    path = Path(path).absolute()
    folder, names, main = path, _files_in(path), ""
    if not path.is_dir():
        folder, names, main = path.parent, (path.name, *beside), path.name
    place = _place(folder, names)  # before they are read: what changes then has another
    return SharedFile(str(folder), names, main, _digest(folder, names), place)


def _files_in(folder: Path) -> tuple[str, ...]:
    files = (Path(base) / name for base, _, names in os.walk(folder) for name in names)
    return tuple(sorted(file.relative_to(folder).as_posix() for file in files))


def receive(inbox: Path, digest: str, name: str, offset: int, data: bytes) -> None:
    """Keep a part of the file of that digest, which is not here; the parts come in order."""
    target = _arriving(inbox, digest) / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("r+b" if offset else "wb") as out:
        out.seek(offset)
        out.write(data)


def received(inbox: Path, digest: str) -> None:
    """All parts are here: from now on the file is found."""
    here = inbox / digest
    shutil.rmtree(here, ignore_errors=True)
    _arriving(inbox, digest).rename(here)


def _arriving(inbox: Path, digest: str) -> Path:
    return inbox / f"{digest}.partial"


def _found_digest(folder: str, names: tuple[str, ...]) -> str:
    """The digest of some files; "" where one is not there."""
    try:
        stamps = tuple(_stamp(Path(folder) / name) for name in names)
        return _known_digest(folder, names, stamps)
    except OSError:
        return ""


def _stamp(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino, found.st_dev


def _place(folder: Path, names: Sequence[str]) -> str:
    """Names these very files of this machine as they are now, so that processes of one machine need
    not read what they share; "" where that cannot be told."""
    try:
        stamps = [_stamp(folder / name) for name in names]
    except OSError:
        return ""
    recent = max((changed for _, changed, *_ in stamps), default=0) / 1e9
    if not _machine() or recent > time.time() - _RECENT_S:
        return ""
    known = repr((_machine(), str(folder), list(names), stamps))
    return hashlib.sha256(known.encode()).hexdigest()


@cache
def _machine() -> str:
    """Another one after each start of the system; "" where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        return ""


@lru_cache(maxsize=256)
def _known_digest(folder: str, names: tuple[str, ...], _: tuple[tuple[int, ...], ...]) -> str:
    return _digest(Path(folder), names)


def _digest(folder: Path, names: Sequence[str]) -> str:
    sizes = [(folder / name).stat().st_size for name in names]
    found = hashlib.sha256(repr([*zip(names, sizes, strict=True)]).encode())
    with ThreadPoolExecutor() as pool:
        blocks = _whole(names, sizes) if sum(sizes) <= _WHOLE_BYTES else _spread(names, sizes)
        for digest in pool.map(lambda block: _block_digest(folder / block[0], block[1]), blocks):
            found.update(digest)
    return found.hexdigest()


def _whole(names: Sequence[str], sizes: Sequence[int]) -> Iterator[tuple[str, int]]:
    """All blocks: names of files, and where in them."""
    for name, size in zip(names, sizes, strict=True):
        for start in range(0, size, _BLOCK_BYTES):
            yield name, start


def _spread(names: Sequence[str], sizes: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Some blocks."""
    ends = list(accumulate(sizes))
    for block in range(_BLOCKS):
        place = block * (ends[-1] - _BLOCK_BYTES) // (_BLOCKS - 1)
        number = bisect_right(ends, place)
        yield names[number], place - (ends[number] - sizes[number])


def _block_digest(path: Path, start: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return hashlib.sha256(file.read(_BLOCK_BYTES)).digest()
