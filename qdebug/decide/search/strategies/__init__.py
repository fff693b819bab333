"""The strategies of the precision search by name.

A strategy is a function of its name. Adding one takes the function, an entry here, and what it does
in half a line in `config/strategies.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdebug.decide.search.strategies.base import Strategy

MODULES: Mapping[str, str] = {
    "auto": "auto",
    "rank": "ranked",
    "ddmin": "ddmin",
    "prefix": "ranked",
    "suffix": "ranked",
    "exhaustive": "exhaustive",
}
"""The module of this package that holds each strategy."""


def load_strategy(name: str) -> Strategy:
    """The strategy of this name, whose module is imported now."""
    strategy: Strategy = resolve_name(f"{__name__}.{MODULES[name]}:{name}")
    return strategy
