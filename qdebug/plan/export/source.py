"""What an export starts from and what it yields. Files are rendered in memory: the pipeline writes
them, all or none."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from pathlib import Path

from qdebug.model.prepare import Model
from qdebug.plan.plan import BoundPlan


@dataclass(frozen=True)
class Source:
    """A plan that is bound to its model.

    Attributes:
        name: what the plan came from, for people: a file's name.
    """

    model: Model
    bound: BoundPlan
    name: str

    def model_beside(self, path: Path) -> str:
        """The model's path seen from the folder of `path`, so that both can move together."""
        target = self.model.file.path.resolve()
        return Path(os.path.relpath(target, path.resolve().parent)).as_posix()


@dataclass(frozen=True)
class Rendered:
    """The files of an export.

    Attributes:
        files: path -> content; the one that was asked for is first.
        notes: what the target cannot express of this plan, and what else its user must know.
    """

    files: Mapping[Path, bytes]
    notes: tuple[str, ...] = ()


def beside(path: Path, suffix: str, replaced: str) -> Path:
    """A companion of `path`: "a_trtexec.sh" -> "a" + suffix, where `replaced` is its own suffix."""
    stem = path.name.removesuffix(replaced)
    if stem in ("", path.name):
        stem = path.stem
    return path.with_name(stem + suffix)


def counted(items: Sized, what: str) -> str:
    """The number of items with a noun, such as "1 layer" or "2 layers"."""
    return f"{len(items)} {what}{'' if len(items) == 1 else 's'}"


def one_line(text: str) -> str:
    """`text` such as it may stand in a comment."""
    return " ".join(text.splitlines())


def comment(lines: tuple[str, ...], prefix: str = "# ", width: int = 96) -> str:
    """Notes as comment lines, wrapped; each note starts with a dash."""
    wrapped = []
    for line in lines:
        wrapped += textwrap.wrap(
            one_line(line),
            width,
            initial_indent=f"{prefix}- ",
            subsequent_indent=f"{prefix}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(wrapped)
