"""About how long parts of a search take, in seconds: what its time limit is divided by."""

from __future__ import annotations

_LITERAL = 1.3
"""What literal Q/DQ takes, in runs of FP32, both with their opening; measured: 1.1 to 1.3."""
_EMULATED = 4.0
"""And what all layers in FP16 take, where FP16 kernels are emulated; measured: 3.4 to 7."""
_RUNS_TO_RATE = 3
"""Runs that the layers' own errors take: of FP32, the candidate and the cut layers."""


def everything_pinned(reference: float, *, emulated: bool) -> float:
    """All layers in FP16, which may be `emulated`, or in FP32.

    Args:
        reference: seconds that FP32 took.
    """
    return (_EMULATED if emulated else _LITERAL) * reference


def seconds_of_checks(
    reference: float, answer: float, *, on_searched: bool, held_out: float = 0.0
) -> float:
    """The checks of an answer: the answer and nothing pinned, on the samples searched where
    `on_searched`, and on those held out, where the reference comes first.

    Args:
        reference: seconds that it took on the samples searched.
        answer: seconds that the answer took on them, in whatever way.
        held_out: how many times as many samples are held out; 0 where they were searched too.
    """
    literal = _LITERAL * reference
    both = literal + max(literal, answer)
    return both * on_searched + _elsewhere(held_out) * (reference + both)


def seconds_of_another(
    reference: float, answer: float, *, on_searched: bool, held_out: float = 0.0
) -> float:
    """The checks of another set than the answer, for which the reference on the held-out samples is
    known already, and the evaluation that is under way when the search ends. See
    seconds_of_checks."""
    literal = _LITERAL * reference
    one = max(literal, answer)
    return answer + (literal + one) * on_searched + one * _elsewhere(held_out)


def _elsewhere(held_out: float) -> float:
    """Of few samples much of the time is opening, however many they are: half is assumed."""
    return max(held_out, (1 + held_out) / 2) if held_out else 0.0


def checks_after_rating(took: float, *, emulated: bool, held_out: float) -> float:
    """The same before anything else is known than that the layers' own errors `took` so long."""
    reference = took / _RUNS_TO_RATE
    answer = everything_pinned(reference, emulated=emulated)
    return seconds_of_checks(reference, answer, on_searched=True, held_out=held_out)
