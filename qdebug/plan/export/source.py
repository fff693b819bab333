"""What an export starts from, and what it produces.

Files are rendered in memory; the pipeline writes all of them or none.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from qdebug.formats.base import Format
from qdebug.formats.registry import INT8
from qdebug.network.prepare import Model
from qdebug.outputfiles import Content
from qdebug.plan.export import EXPORT_TARGETS
from qdebug.plan.export.file_nodes import FileNodes
from qdebug.plan.plan import BoundPlan
from qdebug.plan.quantize import scale_of
from qdebug.wording import counted


def notes_on(*facts: tuple[Collection[str], str, str]) -> tuple[str, ...]:
    """Notes, each on what it holds for: names, what they are the names of, and a text in which
    {these} is their number with the noun, and {first} one of them. Without names there is none."""
    return tuple(
        text.format(these=counted(names, noun), first=next(iter(names)))
        for names, noun, text in facts
        if names
    )


@dataclass(frozen=True)
class FileScales:
    """Scales of the activations that the user's file has.

    Attributes:
        scales: by tensor name.
        lost: activations with a range that are not in the file.
    """

    scales: dict[str, float]
    lost: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What is lost, for people."""
        text = (
            "The ranges of {these} that the model file does not have are not written (first "
            "'{first}')."
        )
        return notes_on((self.lost, "tensor", text))


@dataclass(frozen=True)
class ExportSource:
    """A plan that is bound to its model.

    Attributes:
        model: the user's model.
        bound: the plan.
        name: the name of the plan's file, for messages.
    """

    model: Model
    bound: BoundPlan
    name: str

    @cached_property
    def nodes(self) -> FileNodes:
        """The nodes of the user's file by layer."""
        return FileNodes(self.model, self.bound.layers)

    @cached_property
    def weight_ranges(self) -> tuple[str, ...]:
        """Weights that the plan has a range for."""
        constants = self.bound.layers.graph.initializers
        return tuple(t for t in self.bound.plan.tensors if t in constants)

    @cached_property
    def scales(self) -> FileScales:
        """The scales of the plan's activations in INT8.

        Raises:
            PlanError: an amax is not valid.
        """
        return self.scales_in(INT8)

    def scales_in(self, form: Format) -> FileScales:
        """The scales of the plan's activations in a format.

        Raises:
            PlanError: an amax is not valid.
        """
        scales, lost = {}, []
        for name, entry in self.bound.plan.tensors.items():
            if name in self.weight_ranges or isinstance(entry.amax, tuple):
                continue
            if name in self.nodes.tensors:
                scales[name] = float(scale_of(entry.amax, f"tensor '{name}'", form))
            else:
                lost.append(name)
        return FileScales(scales, tuple(lost))

    def model_beside(self, path: Path) -> str:
        """The model's path relative to the folder of `path`, so that both can move together."""
        target = self.model.file.path.resolve()
        return Path(os.path.relpath(target, path.resolve().parent)).as_posix()


@dataclass(frozen=True)
class Rendered:
    """The files of an export.

    Attributes:
        files: path -> content; the one that was asked for is first.
        notes: what the target cannot express of this plan, and what else its user must know.
    """

    files: Mapping[Path, Content]
    notes: tuple[str, ...] = ()


def beside(path: Path, suffix: str, target: str) -> Path:
    """A companion of a target's main file: "a_trtexec.sh" -> "a" + suffix."""
    stem = path.name.removesuffix(EXPORT_TARGETS[target].suffix)
    if stem in ("", path.name):
        stem = path.stem
    return path.with_name(stem + suffix)


def in_utf8(text: str) -> bytes:
    """A program of Python, or JSON; a file name that is no text is escaped, as both read it."""
    return text.encode("utf-8", "backslashreplace")


def one_line(text: str) -> str:
    """`text` on one line, for a comment."""
    return " ".join(text.splitlines())


def docstring(text: str) -> str:
    """`text` on one line, for a docstring."""
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"').replace("\n", " ")


def comment(lines: tuple[str, ...]) -> str:
    """Notes as comment lines, wrapped; each note starts with a dash."""
    wrapped = []
    for line in lines:
        wrapped += textwrap.wrap(
            one_line(line),
            width=96,
            initial_indent="# - ",
            subsequent_indent="#   ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(wrapped)
