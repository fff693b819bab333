"""Strategies of the precision search, by name."""

from __future__ import annotations

from collections.abc import Mapping

from qdebug.search.strategies.auto import auto
from qdebug.search.strategies.base import Strategy
from qdebug.search.strategies.ddmin import ddmin
from qdebug.search.strategies.exhaustive import exhaustive
from qdebug.search.strategies.ranked import prefix, rank, suffix

STRATEGIES: Mapping[str, Strategy] = {
    "auto": auto,
    "rank": rank,
    "ddmin": ddmin,
    "prefix": prefix,
    "suffix": suffix,
    "exhaustive": exhaustive,
}
