"""The engines that a sweep saves, and how a sweep that was killed goes on with them."""

from __future__ import annotations

import dataclasses
import hashlib
from contextlib import suppress
from pathlib import Path

from qdebug import __version__
from qdebug.backends.engine import BuiltEngine
from qdebug.config.cluster import ClusterSettings
from qdebug.config.option import settings_of
from qdebug.config.sweep import SweepSettings
from qdebug.inputfiles import open_file
from qdebug.outputfiles import make_folder, write_bytes, write_text
from qdebug.wording import option

_MARKER = ".unfinished"
_LONGEST_KEY = 64


class SavedEngines:
    """A folder with N.engine and N.log for each row of a sweep.

    As long as the sweep is not done, a marker in the folder says which sweep the files belong to:
    the same sweep may write them again, another one may not.
    """

    def __init__(self, settings: SweepSettings, model_digest: str, rows: int) -> None:
        """Make the folder that `settings` name, for so many rows.

        Raises:
            StoreError: it cannot be made, or holds files of those names which another sweep, or
                one that was finished, wrote, and which must not be replaced.
        """
        self._folder = Path(settings.save_engines or "")
        self._marker = self._folder / _MARKER
        key = _key(settings, model_digest)
        resumed = _read(self._marker) == key
        names = [f"{k}{end}" for k in range(1, rows + 1) for end in (".engine", ".log")]
        flag = option("save_engines")
        make_folder(str(self._folder), names, flag, force=settings.force or resumed)
        if not self._marker.is_file() or self._marker.is_symlink():  # nothing that we wrote
            with suppress(OSError):  # then it cannot be written either, which is said below
                self._marker.unlink(missing_ok=True)
        write_text(str(self._marker), key, flag, force=True)

    def save(self, row: int, built: BuiltEngine) -> None:
        """Write the files of a row, from 1.

        Raises:
            StoreError: they cannot be written.
        """
        stem, flag = self._folder / str(row), option("save_engines")
        write_bytes(f"{stem}.engine", built.engine, flag, force=True)
        write_text(f"{stem}.log", built.log, flag, force=True)

    def finish(self) -> None:
        """The sweep is done: its files are the user's."""
        with suppress(OSError):
            self._marker.unlink(missing_ok=True)


def _read(marker: Path) -> str:
    try:
        if marker.is_symlink():  # of somebody else's
            return ""
        with open_file(marker) as file:
            return file.read(_LONGEST_KEY).decode("ascii")
    except (OSError, ValueError):
        return ""


def _key(settings: SweepSettings, model_digest: str) -> str:
    """A digest of all that decides the rows of a sweep."""
    apart = {s.name for s in settings_of(SweepSettings) if s.option.writes} | {"force"}
    apart |= {field.name for field in dataclasses.fields(ClusterSettings)}
    values = [
        (field.name, repr(getattr(settings, field.name)))
        for field in dataclasses.fields(settings)
        if field.name not in apart
    ]
    return hashlib.sha256(repr((__version__, model_digest, values)).encode()).hexdigest()
