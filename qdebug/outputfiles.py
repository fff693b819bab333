"""Files for the user (JSON, plans, engines): checked before the work starts, written whole or not
at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from qdebug.errors import StoreError, UsageError
from qdebug.wording import option


def check_writable(path: str, flag: str) -> None:
    """Find out before a long run whether `path` can be written after it.

    Raises:
        StoreError: it is a directory, or its directory is missing or takes no files.
    """
    if os.path.isdir(path):  # noqa: PTH112 (Path.is_dir raises on a name that is too long)
        raise StoreError(
            f"{flag}: {path} is a directory",
            "Give the path of a file.",
            code="QD-STORE-OUTPUT-PATH",
        )
    if _is_special(path):
        return
    target = Path(os.path.realpath(path))
    directory = target.parent
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=f".{target.name}."):
            pass
    except FileNotFoundError:
        raise StoreError(
            f"{flag}: {path} cannot be written: there is no directory {directory}",
            f"Run 'mkdir -p {directory}', or give another path.",
            code="QD-STORE-OUTPUT-PATH",
        ) from None
    except OSError as error:
        raise _refused(path, flag, error) from error


def check_new(path: str, flag: str, *, force: bool) -> None:
    """As `check_writable`, and refuse to replace a file unless `force`.

    Raises:
        StoreError: it exists, or cannot be written.
    """
    check_writable(path, flag)
    if os.path.isfile(path) and not force:  # noqa: PTH113 (as above)
        raise output_exists(path, flag)


def output_exists(path: str, flag: str) -> StoreError:
    """The error of a file that exists and may not be replaced."""
    return StoreError(
        f"{flag}: {path} exists",
        f"Give {option('force')} to replace it.",
        code="QD-STORE-OUTPUT-EXISTS",
    )


def make_folder(path: str, names: Iterable[str], flag: str, *, force: bool) -> None:
    """Make a folder for files called `names`, and refuse to replace one unless `force`.

    Raises:
        StoreError: one exists, or it cannot be made.
    """
    folder = Path(path)
    for name in names:
        if not force and (folder / name).exists():
            raise output_exists(str(folder / name), flag)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(path, flag, error) from error


def write_text(path: str, text: str, flag: str) -> None:
    """`write_bytes` of `text` in UTF-8."""
    write_bytes(path, text.encode(), flag)


def write_bytes(path: str, data: bytes, flag: str) -> None:
    """Write a file in one step: what was there stays until the new one is whole.

    Raises:
        StoreError: it cannot be written.
    """
    target = Path(os.path.realpath(path))
    partial = target.with_name(f".{target.name}.partial")
    try:
        if _is_special(path):  # a device or a pipe is written to, not replaced
            Path(path).write_bytes(data)
            return
        partial.write_bytes(data)
        partial.replace(target)
    except OSError as error:
        raise _refused(path, flag, error) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def check_distinct(outputs: Mapping[str, str | None], inputs: Mapping[str, str | None]) -> None:
    """Refuse to write two things to one file, or over something that is read (--force or not).

    Both map what the user calls it (a flag) to its path.

    Raises:
        UsageError: two of them are one file.
    """
    taken = {os.path.realpath(path): flag for flag, path in inputs.items() if path}
    for flag, path in outputs.items():
        if not path or _is_special(path):
            continue
        other = taken.setdefault(os.path.realpath(path), flag)
        if other != flag:
            raise UsageError(
                f"{flag}: {path} is also {other}",
                f"Give another path for {flag}.",
                code="QD-USAGE-SAME-FILE",
            )


def _is_special(path: str) -> bool:
    return os.path.exists(path) and not os.path.isfile(path)  # noqa: PTH110, PTH113 (as above)


def _refused(path: str, flag: str, error: OSError) -> StoreError:
    return StoreError(
        f"{flag}: {path} cannot be written: {error.strerror or error}",
        "Give another path.",
        code="QD-STORE-OUTPUT-PATH",
    )
