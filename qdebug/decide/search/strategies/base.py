"""What a strategy sees of a search: layers to choose from, and a question it may ask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from qdebug.decide.search.problem import ROUGH_STD, Measurement

Chosen = frozenset[str]
"""Names of the layers that are raised."""


@dataclass(frozen=True)
class Choice:
    """A layer that is raised or not.

    Attributes:
        cost: of raising it, ≥ 0.
        noise: the estimate of what it adds to the output's noise while it is not; 0 if unknown.
        noise_std: the standard deviation of the logarithm of that.
        block: the name of the block that it is part of; "" where it is in none.
    """

    name: str
    cost: float
    noise: float
    noise_std: float = ROUGH_STD
    block: str = ""


@dataclass(frozen=True)
class Found:
    """What a strategy returns.

    Attributes:
        chosen: a set that was asked for and passed.
        reason: what is known about it beyond that, for the user.
        cheaper_left: how many cheaper sets were not evaluated; None where that was not counted.
    """

    chosen: Chosen
    reason: str = ""
    cheaper_left: int | None = None


class Ask(Protocol):
    """The question: do these sets pass? One answer each, in order; asking again is free."""

    def __call__(self, sets: Sequence[Chosen]) -> list[Measurement]:
        """Raises BudgetSpent when there may be no further evaluation."""
        ...


class Strategy(Protocol):
    """A way to search. It knows that the empty set fails and that the set of all choices passes,
    and may ask for both for free; it assumes nothing else of its answer that it has not asked."""

    def __call__(self, choices: Sequence[Choice], ask: Ask) -> Found:
        """A set that passes.

        Args:
            choices: in order of execution.

        Raises:
            BudgetSpent: from `ask`.
        """
        ...


def everything(choices: Iterable[Choice]) -> Chosen:
    """All of them."""
    return frozenset(choice.name for choice in choices)


def passes(ask: Ask, chosen: Chosen) -> bool:
    """The verdict on one set."""
    return ask([chosen])[0].passed
