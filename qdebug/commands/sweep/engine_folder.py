"""The folder of the engines that a sweep saves."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from qdebug.backends.engine import BuiltEngine
from qdebug.outputfiles import make_folder, write_bytes, write_text
from qdebug.wording import option


class EngineFolder:
    """A folder with N.engine and N.log for each row of a sweep, once that is done.

    Until then they lie in a folder within, so that a sweep that was killed finds nothing in its way
    when it goes on.
    """

    def __init__(self, stack: ExitStack, path: str, rows: int, *, force: bool) -> None:
        """Make the folder, for so many rows; `stack` clears away what is not finished.

        Raises:
            StoreError: it cannot be made, or holds files of those names and not `force`.
        """
        self._flag = option("save_engines")
        names = [f"{k}{end}" for k in range(1, rows + 1) for end in (".engine", ".log")]
        make_folder(path, names, self._flag, force=force)
        self._folder = Path(path)
        self._unfinished = Path(stack.enter_context(TemporaryDirectory(dir=path, prefix=".")))

    def save(self, row: int, built: BuiltEngine) -> None:
        """Write the files of a row, from 1.

        Raises:
            StoreError: they cannot be written.
        """
        stem = self._unfinished / str(row)
        write_bytes(f"{stem}.engine", built.engine, self._flag, force=True)
        write_text(f"{stem}.log", built.log, self._flag, force=True)

    def finish(self) -> None:
        """The sweep is done: its files are the user's."""
        for file in self._unfinished.iterdir():
            file.replace(self._folder / file.name)
