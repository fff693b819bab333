"""The evaluations of a search on disk, so that a search that was killed resumes where it was.

A text file of JSON lines: a header that says which search it belongs to, then one line for each
evaluation, on disk before the search goes on. A last line that a kill cut short is dropped. Each
line holds a digest of itself and the header: edited ones, and those of another search, are refused.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn

from qdebug.decide.search.problem import Measurement, Pins, pins_of
from qdebug.errors import StoreError
from qdebug.inputfiles import check_file
from qdebug.types import Precision
from qdebug.wording import option

SCHEMA = "qdebug.journal/2"
_NO_ENTRY = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)
"""What reading a line that is none raises."""


def _unusable(why: str) -> StoreError:
    hint = f"Give another {option('journal')}, or start this one anew with {option('force')}."
    return StoreError(why, hint, code="QD-STORE-JOURNAL")


class Journal(AbstractContextManager["Journal"]):
    """An open journal. A context manager; one process at a time.

    Attributes:
        path: the file.
        recorded: the evaluations that were in it when it was opened.
    """

    def __init__(
        self, path: Path, key: Mapping[str, str], *, restart: bool = False, needed: bool = True
    ) -> None:
        """Open the journal, or create it.

        Args:
            key: what the search depends on (hashes of model and samples, the target, …), by name;
                a journal with another key is not used.
            restart: drop what is in it, whatever it belongs to.
            needed: a disk that refuses an evaluation is an error; else the search goes on without.

        Raises:
            StoreError: it cannot be read or written, is in use, belongs to another search, or
                holds a line that is not an evaluation.
        """
        self.path, self._needed = path, needed
        self._header = _line({"schema": SCHEMA, "key": dict(key)})
        try:
            self._fd = _open(path)
        except OSError as error:
            _refuse(path, error)
        try:
            self._lock()
            if restart:
                os.ftruncate(self._fd, 0)
            self.recorded = self._read(dict(key))
        except OSError as error:
            self.close()
            _refuse(path, error)
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, pins: Pins, measurement: Measurement) -> None:
        """Record an evaluation; it is on disk when this returns.

        Raises:
            StoreError: the disk is full, or failed.
        """
        if self._fd < 0 and not self._needed:  # the disk has refused before
            return
        try:
            entry = _entry(pins, measurement)
            self._write(_line({**entry, "digest": self._digest(entry)}))
        except OSError as error:
            if not self._needed:
                self.close()
                return
            raise StoreError(
                f"{self.path}: cannot be written ({error.strerror}).",
                "Free some space and run the same command again: it continues from here.",
                code="QD-STORE-DISK-FULL",
            ) from error

    def close(self) -> None:
        """Close the file; doing so twice does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                f"{self.path}: another search is writing it now.",
                "Wait for it to end, or give another journal.",
                code="QD-STORE-BUSY",
            ) from None
        except OSError:
            pass  # a network file system without locks

    def _read(self, key: dict[str, str]) -> Mapping[Pins, Measurement]:
        with os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(0)
            data = file.read()
        header = self._header
        if header.startswith(data) and data != header:  # new, or killed while it was created
            os.ftruncate(self._fd, 0)
            self._write(header)
            return {}
        whole = data[: data.rfind(b"\n") + 1]
        first, *lines = whole.split(b"\n")[:-1] or [b""]
        self._check_header(first, key)
        recorded: dict[Pins, Measurement] = {}
        for number, line in enumerate(lines, start=2):
            try:
                entry = json.loads(line)
                digest = entry.pop("digest")
                pins, measurement = _parsed(entry)
                own = digest == self._digest(entry)
            except _NO_ENTRY as error:
                raise _unusable(f"{self.path}:{number}: is not an evaluation.") from error
            if not own:
                raise _unusable(f"{self.path}:{number}: was edited, or is of another search.")
            if recorded.setdefault(pins, measurement) is not measurement:
                raise _unusable(f"{self.path}:{number}: an evaluation that is there twice.")
        os.ftruncate(self._fd, len(whole))
        return recorded

    def _check_header(self, line: bytes, key: dict[str, str]) -> None:
        try:
            header = json.loads(line)
            schema, found = header["schema"], dict(header["key"])
        except _NO_ENTRY:
            raise _unusable(f"{self.path}: is not a journal of a search.") from None
        if schema != SCHEMA:
            raise _unusable(f"{self.path}: has the schema {schema}, not {SCHEMA}.")
        other = sorted(n for n in found.keys() | key if found.get(n) != key.get(n))
        if other:
            raise _unusable(f"{self.path}: belongs to another search ({', '.join(other)} differ).")

    def _digest(self, entry: Mapping[str, Any]) -> str:
        return hashlib.sha256(self._header + _line(entry)).hexdigest()

    def _write(self, line: bytes) -> None:
        os.lseek(self._fd, 0, os.SEEK_END)
        while line:
            line = line[os.write(self._fd, line) :]
        os.fsync(self._fd)


def _open(path: Path) -> int:
    if path.exists():
        check_file(path)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _refuse(path: Path, error: OSError) -> NoReturn:
    raise StoreError(
        f"{path}: cannot be used ({error.strerror}).",
        "Give another journal.",
        code="QD-STORE-OUTPUT-PATH",
    ) from error


def _line(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, sort_keys=True, allow_nan=False) + "\n").encode("ascii")


def _entry(pins: Pins, measurement: Measurement) -> dict[str, Any]:
    return {
        "pins": dict(pins),
        "passed": measurement.passed,
        "value": _number(measurement.value),
        "noise": _number(measurement.noise),
        "slack": _number(measurement.slack),
        "seconds": _number(measurement.seconds),
        "failure": measurement.failure,
        "held_out": measurement.held_out,
    }


def _parsed(entry: dict[str, Any]) -> tuple[Pins, Measurement]:
    if not isinstance(entry["passed"], bool) or not isinstance(entry["failure"], str):
        raise TypeError
    pins = pins_of({name: Precision(p) for name, p in entry["pins"].items()})
    return pins, Measurement(
        value=_float(entry["value"]),
        passed=entry["passed"],
        noise=_float(entry["noise"]),
        slack=_float(entry["slack"]),
        seconds=float(entry["seconds"]),
        failure=entry["failure"],
        held_out=bool(entry.get("held_out")),
    )


def _number(value: float | None) -> float | str | None:
    """JSON has no NaN and no Inf: they are written as text, which `float` reads."""
    if value is None:
        return None
    text = repr(float(value))
    return text if text in ("nan", "inf", "-inf") else float(value)


def _float(value: float | str | None) -> float | None:
    return None if value is None else float(value)
