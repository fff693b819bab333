"""Into how many segments models are cut: what a user asks for."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_BUDGET = 2 << 30
"""Bytes: that of commands that have no memory budget."""
_SHARE = 4
"""The weights of segments take one part in so many of the memory budget. The others are for the
activations. A model that is not cut may take as much as the budget: its weights are read from the
same memory by all sessions, and each execution of segments takes a tenth longer."""


AUTO, OFF = "auto", "off"


@dataclass(frozen=True)
class Segmentation:
    """Into how many segments models are cut.

    Attributes:
        budget: the memory budget, in bytes.
        count: None for as many as the budget asks for.
    """

    budget: int = DEFAULT_BUDGET
    count: int | None = None

    @classmethod
    def of(cls, asked: str, memory_budget: int = DEFAULT_BUDGET) -> Segmentation:
        """What a user asks for: auto, off or a number; the budget in bytes is for auto."""
        count = None if asked == AUTO else 1 if asked == OFF else int(asked)
        return cls(memory_budget, count)

    @property
    def room(self) -> float:
        """Of the mapped weights of the segments of all executions in flight, in bytes, where
        `count` does not say."""
        return self.budget / _SHARE

    def cuts(self, mapped_bytes: int) -> bool:
        """Whether a model whose weights take that in files is cut."""
        return mapped_bytes > self.budget if self.count is None else self.count > 1
