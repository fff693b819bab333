"""Lines of text that a network reads, and error rates of them: labels are an array `text` [samples]
of strings, outputs are scores of characters frame by frame (connectionist temporal classification,
Graves et al. 2006)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from qdebug.errors import MetricError, required
from qdebug.metrics.tasks.base import (
    Float64,
    Floats,
    Outputs,
    Reading,
    Rows,
    arrays_there,
    first_output,
)
from qdebug.metrics.tasks.classes import LEAST_PROBABILITY, are_probabilities
from qdebug.metrics.tasks.decode import decoder_named, users_decoder
from qdebug.metrics.tasks.facts import ModelFacts
from qdebug.types import Array
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


class LineReading(Reading):
    """Lines by the best path, or as a function of the user's reads them."""

    def __init__(self, name: str, facts: ModelFacts | None, decode: str | None) -> None:
        """See Reading."""
        super().__init__(name, facts, None)
        function = users_decoder(decode)
        if function is not None:
            self.described = f"text as {decode} gives it"
            self._read: Callable[[Outputs], Lines] = partial(_read_by, function, str(decode))
            return
        blank = "last" if decoder_named(decode, "text") == "ctc-last" else "first"
        self.described = f"text by the best path (greedy CTC), the {blank} class is the blank"
        seen = facts or ModelFacts({}, {})
        self._read = partial(greedy, facts=seen, blank_last=blank == "last")

    def found(self, outputs: Outputs, reference: Outputs) -> Lines:
        """See Reading."""
        return self._read(outputs)

    def labelled(self, labels: Outputs, found: Lines) -> Lines:
        """See Reading."""
        self.check_labels(labels)
        if found.frames is not None and found.characters is None:
            raise MetricError(
                "which characters the model's classes stand for is not known: its file has no "
                "metadata 'character', or they do not fit its output",
                f"Say with {option('decode', 'file.py:function')} how the outputs become strings.",
                code="QD-METRIC-DECODE",
            )
        return Lines(tuple(map(str, np.ravel(labels["text"]))))

    def check_labels(self, labels: Outputs) -> None:
        """See Reading."""
        if "text" not in labels:
            raise MetricError(
                "the metric needs labelled text, an array 'text' in the data: "
                f"{arrays_there(labels)}",
                f"Add the strings under that name, or use {option('metric', 'cer-to-reference')}.",
                code="QD-METRIC-LABELS",
            )


def _read_by(function: Callable[[Outputs], Any], decode: str, outputs: Outputs) -> Lines:
    """What a user's function read.

    Raises:
        MetricError: it is not one string for each sample.
    """
    returned, samples = function(outputs), len(first_output(outputs))
    if isinstance(returned, str) or np.shape(returned) != (samples,):
        raise MetricError(
            f"{option('decode', decode)}: the function did not return one string for each of the "
            f"{samples} samples",
            "Return a list of strings.",
            code="QD-METRIC-DECODE",
        )
    return Lines(tuple(map(str, returned)))


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
    listed = facts.metadata.get("character", "").split("\n")
    if len(listed) > 1 and not listed[-1]:
        listed = listed[:-1]
    listed += [" "] * (len(listed) == classes - 2)
    names = tuple(listed) if len(listed) == classes - 1 and len(listed) > 1 else None
    blank, first = (classes - 1, 0) if blank_last else (0, 1)
    best = np.argmax(np.where(np.isnan(frames), -np.inf, frames), axis=2)
    paths = ([n for n, _ in groupby(row) if n != blank] for row in best.tolist())
    texts = (
        "".join(names[n - first] if names else chr(_WITHOUT_NAMES + n) for n in p) for p in paths
    )
    return Lines(tuple(texts), frames, names, blank)


def error_rate(found: Lines, truth: Lines, _: Lines, of: str) -> float:
    """Edits over all lines for each of all "characters" or "words" of the truth, by jiwer.

    Raises:
        MetricError: jiwer is not installed, or the truth has no text.
    """
    library = required("jiwer", "an error rate", code="QD-METRIC-EXTRA", error=MetricError)
    # jiwer refuses an empty truth: what is read where nothing stands are insertions.
    pairs = list(zip(truth.texts, found.texts, strict=True))
    there = [(one, other) for one, other in pairs if one.strip()]
    if not there:
        raise MetricError(
            "an error rate needs true text, and these samples have none",
            "Give samples with text in them.",
            code="QD-METRIC-LABELS",
        )
    counted = getattr(library, f"process_{of}")(*map(list, zip(*there, strict=True)))
    added = (other for one, other in pairs if not one.strip())
    edits = counted.substitutions + counted.deletions + counted.insertions
    edits += sum(len(other if of == "characters" else other.split()) for other in added)
    return float(edits / (counted.hits + counted.substitutions + counted.deletions))


def cer(found: Lines, truth: Lines, reference: Lines) -> float:
    """Character error rate."""
    return error_rate(found, truth, reference, "characters")


def wer(found: Lines, truth: Lines, reference: Lines) -> float:
    """Word error rate."""
    return error_rate(found, truth, reference, "words")


def ctc_loss(found: Lines, truth: Lines, reference: Lines) -> Float64:
    """−log p of each line's true text, float64 [samples], over all paths of the frames that read it
    (Graves et al. 2006, equations 5 to 8, in logarithms). A text that is too long for the frames
    counts as one with the least probability in each. Whether scores are probabilities, the
    `reference`, FP32, tells. Where a function of the user's reads: whether a line is another.

    Measured on quantized variants of a text recognizer: it orders 7 of 324 pairs surely wrongly,
    where FP32's own reading is the truth; noise 34, margins of the frames 25 and more.
    """
    if found.frames is None or reference.frames is None:
        pairs = zip(found.texts, truth.texts, strict=True)
        return np.array([one != other for one, other in pairs], np.float64)
    probabilities = are_probabilities(reference.frames[0].astype(np.float64))
    losses = []
    for frames, text in zip(found.frames, truth.texts, strict=True):
        states = [found.blank]
        for number in found.classes_of(text):
            states += [number, found.blank]
        losses.append(_loss(_log_probabilities(frames, states, probabilities), states, found.blank))
    return np.array(losses, np.float64)


def _loss(logs: Float64, states: list[int], blank: int) -> float:
    """Of one line; `logs` are those of its states in each frame, [frames, states]."""
    every = np.array(states)
    may_skip = np.zeros(len(states), bool)  # the blank before, where another character follows
    may_skip[2:] = (every[2:] != blank) & (every[2:] != every[:-2])
    ways = np.full(len(states), -np.inf)
    ways[:2] = logs[0, :2]
    for frame in logs[1:]:
        moved = np.concatenate([[-np.inf], ways[:-1]])
        skipped = np.concatenate([[-np.inf, -np.inf], ways[:-2]])[: len(ways)]
        before = np.logaddexp(np.logaddexp(ways, moved), np.where(may_skip, skipped, -np.inf))
        ways = before + frame
    most = -len(logs) * float(np.log(LEAST_PROBABILITY))
    return min(most, -float(np.logaddexp.reduce(ways[-2:])))


def _log_probabilities(frames: Array, states: list[int], probabilities: bool) -> Float64:
    """Of the states in each frame; NaN is no probability."""
    wide = np.nan_to_num(frames.astype(np.float64), nan=0.0 if probabilities else -np.inf)
    if probabilities:
        return np.asarray(np.log(np.maximum(wide[:, states], LEAST_PROBABILITY)), np.float64)
    top = wide.max(axis=1, keepdims=True)
    whole = top + np.log(np.exp(wide - top).sum(axis=1, keepdims=True))
    return np.asarray(np.maximum(wide[:, states] - whole, np.log(LEAST_PROBABILITY)), np.float64)
