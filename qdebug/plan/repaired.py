"""What a model or a plan that `qdebug repair` wrote says of itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import onnx
from pydantic import TypeAdapter, ValidationError

_KEY = "qdebug.repair"
_COMMENT = f"# {_KEY}: "
_FIRST_LINES = 200
"""Of a plan: the comments at its top."""


@dataclass(frozen=True)
class Record:
    """How good a repair is, next to others of the same model for the same target.

    Attributes:
        question: a digest of what it was to reach, on which samples; "" where that is not known.
        rank: the smaller the better, item by item.
        told: the same for people.
        unfinished: it is the best so far of a repair that went on after it.
        model: the SHA-256 of the FP32 model's file.
        remedies: those in it, by name.
    """

    question: str
    rank: tuple[float, ...]
    told: str
    unfinished: bool = False
    model: str = ""
    remedies: tuple[str, ...] = ()

    def better_than(self, other: Record) -> bool:
        """Whether both answer the same question, and this one better."""
        same = bool(self.question) and self.question == other.question
        return same and not self.unfinished and self.rank < other.rank

    @property
    def text(self) -> str:
        """As JSON, in one line."""
        return json.dumps(asdict(self))

    @property
    def comment(self) -> str:
        """As a comment line of a plan is written, without its sign."""
        return f"{_KEY}: {self.text}"


def marked_repaired(proto: onnx.ModelProto, record: Record) -> onnx.ModelProto:
    """A copy of a model in which its record is noted."""
    marked = onnx.ModelProto()
    marked.CopyFrom(proto)
    marked.metadata_props.add(key=_KEY, value=record.text)
    return marked


def remedies_in(proto: onnx.ModelProto) -> tuple[str, ...]:
    """The remedies that were noted in a model; empty where none were."""
    record = _noted([p.value for p in proto.metadata_props if p.key == _KEY])
    return () if record is None else record.remedies


def is_unfinished(path: str, model: str) -> bool:
    """Whether a file is what a repair of a model, by its SHA-256, left that was ended before its
    end."""
    record = record_in(path)
    return record is not None and record.unfinished and record.model == model


def record_in(path: str) -> Record | None:
    """What the model or the plan in a file says of itself; None where it says nothing, or there is
    no such file."""
    try:
        if path.endswith(".onnx"):
            proto = onnx.load(path, load_external_data=False)
            return _noted([p.value for p in proto.metadata_props if p.key == _KEY])
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            lines = list(islice(file, _FIRST_LINES))
    except Exception:  # whatever the file is: it was not written by a repair
        return None
    return _noted([x.removeprefix(_COMMENT) for x in lines if x.startswith(_COMMENT)])


def _noted(texts: Sequence[str]) -> Record | None:
    """The record that the first of these is; None where it is somebody else's."""
    try:
        return TypeAdapter(Record).validate_json(texts[0]) if texts else None
    except ValidationError:
        return None
