"""The strategies of the precision search, in half a line each: what `--help` shows of them."""

from __future__ import annotations

from collections.abc import Mapping

STRATEGIES: Mapping[str, str] = {
    "auto": "predicts the cheapest set that passes, verifies it, and shrinks it",
    "rank": "the layers that cost most alone, by doubling and a binary search",
    "ddmin": "delta debugging, which knows neither costs nor ranks",
    "prefix": "the first layers, by a binary search, as Polygraphy's debug precision",
    "suffix": "the last layers, in the same way",
    "exhaustive": "every set, the cheapest first; up to 16 layers",
}
"""All strategies; the first is the default. `decide.search.strategies` holds their functions."""
