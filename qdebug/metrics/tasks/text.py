"""Lines of text that a network reads: labels are an array `text` [samples] of strings, outputs are
scores of characters frame by frame (connectionist temporal classification, Graves et al. 2006)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qdebug.errors import MetricError
from qdebug.metrics.tasks.base import Floats, Int64, Outputs, Rows, first_output
from qdebug.metrics.tasks.facts import ModelFacts
from qdebug.wording import option

_WITHOUT_NAMES = 0xE000
"""Where Unicode's private use begins: classes without characters are told apart by these."""


@dataclass(frozen=True)
class Lines:
    """What is read in some samples.

    Attributes:
        texts: one for each sample.
        frames: scores of the characters, [samples, frames, classes]; None of labels, and where a
            function of the user's read them.
        characters: of each class but the blank; None where they are not known, and each stands for
            itself in the texts.
        blank: the class between characters.
    """

    texts: tuple[str, ...]
    frames: Floats | None = None
    characters: tuple[str, ...] | None = None
    blank: int = 0

    def classes_of(self, text: str) -> list[int]:
        """The classes that spell a text; what the network has no class for is left out."""
        if self.characters is None:
            return [ord(letter) - _WITHOUT_NAMES for letter in text]
        first = 0 if self.blank else 1
        numbers = {letter: first + n for n, letter in enumerate(self.characters)}
        return [numbers[letter] for letter in text if letter in numbers]

    def take(self, rows: Rows) -> Lines:
        """Those of some samples."""
        frames = None if self.frames is None else self.frames[rows]
        texts = tuple(self.texts[row] for row in rows)
        return Lines(texts, frames, self.characters, self.blank)


def greedy(outputs: Outputs, facts: ModelFacts, *, blank_last: bool = False) -> Lines:
    """The best path of each sample: the highest score of each frame, repetitions joined, blanks
    left out. The blank is the first class, or the last.

    The characters are those that the model file's metadata list under `character`, one on a line,
    as PaddleOCR's exports do; a class behind the last one is a space.

    Raises:
        MetricError: the first output is not [samples, frames, classes].
    """
    frames = first_output(outputs)
    if frames.ndim != 3:
        raise MetricError(
            f"reading text needs scores [samples, frames, classes], and the first output is "
            f"{list(frames.shape)}",
            f"Say with {option('decode', 'file.py:function')} how the outputs become strings.",
            code="QD-METRIC-OUTPUT",
        )
    classes = frames.shape[2]
    names = _characters(facts, classes)
    blank = classes - 1 if blank_last else 0
    best = np.argmax(np.where(np.isnan(frames), -np.inf, frames), axis=2)
    texts = tuple(_joined(row, blank, names) for row in best)
    return Lines(texts, frames, names, blank)


def labelled_lines(labels: Outputs, found: Lines) -> Lines:
    """The text of the labels.

    Raises:
        MetricError: there is none, or the characters of the model are not known.
    """
    if "text" not in labels:
        there = f"the arrays that are not inputs are {', '.join(labels)}" if labels else "none are"
        raise MetricError(
            f"the metric needs labelled text, an array 'text' in the data: {there}",
            f"Add the strings under that name, or use {option('metric', 'cer-to-reference')}.",
            code="QD-METRIC-LABELS",
        )
    if found.frames is not None and found.characters is None:
        raise MetricError(
            "which characters the model's classes stand for is not known: its file has no metadata "
            "'character', or they do not fit its output",
            f"Say with {option('decode', 'file.py:function')} how the outputs become strings.",
            code="QD-METRIC-DECODE",
        )
    return Lines(tuple(str(text) for text in np.ravel(labels["text"])))


def _characters(facts: ModelFacts, classes: int) -> tuple[str, ...] | None:
    """The character of each class but the blank; None where they are not known."""
    listed = facts.metadata.get("character", "").split("\n")
    if len(listed) > 1 and not listed[-1]:
        listed = listed[:-1]
    if len(listed) == classes - 2:
        listed.append(" ")
    return tuple(listed) if len(listed) == classes - 1 and len(listed) > 1 else None


def _joined(best: Int64, blank: int, names: Sequence[str] | None) -> str:
    changes = np.concatenate([[True], best[1:] != best[:-1]]) if len(best) else best.astype(bool)
    kept = best[changes & (best != blank)].tolist()
    first = 0 if blank else 1
    return "".join(names[n - first] if names else chr(_WITHOUT_NAMES + n) for n in kept)
