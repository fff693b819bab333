"""The strategies of the precision search by name. Nothing here imports numpy: `--help` reads it.

A strategy is a function of its name. Adding one takes the function and an entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdebug.search.strategies.base import Strategy


@dataclass(frozen=True)
class StrategyEntry:
    """A strategy: the module of this package that holds it, and what it does in half a line."""

    module: str
    summary: str


STRATEGIES: Mapping[str, StrategyEntry] = {
    "auto": StrategyEntry(
        "auto", "predicts the cheapest set that passes, verifies it, and shrinks it"
    ),
    "rank": StrategyEntry(
        "ranked", "the layers that cost most alone, by doubling and a binary search"
    ),
    "ddmin": StrategyEntry("ddmin", "delta debugging, which knows neither costs nor ranks"),
    "prefix": StrategyEntry(
        "ranked", "the first layers, by a binary search, as Polygraphy's debug precision"
    ),
    "suffix": StrategyEntry("ranked", "the last layers, in the same way"),
    "exhaustive": StrategyEntry("exhaustive", "every set, the cheapest first; up to 16 layers"),
}
"""All strategies; the first is the default."""


def load_strategy(name: str) -> Strategy:
    """The strategy of one of STRATEGIES, whose module is imported now."""
    strategy: Strategy = resolve_name(f"{__name__}.{STRATEGIES[name].module}:{name}")
    return strategy
