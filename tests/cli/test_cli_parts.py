"""What the layers' errors consist of, as the real program gives it."""

from __future__ import annotations

from typing import Any

import pytest


def test_parts_are_shown_on_request_only(desk: Any) -> None:
    assert "inherited" not in desk.compare().out
    assert "inherited weights clipping rounding interact." in desk.compare("-v").out


def test_parts_do_not_depend_on_the_memory_budget(desk: Any) -> None:
    """Which runs the layers in several groups."""
    whole, groups = (_parts(desk.result(*how)) for how in ((), ("--memory-budget", "1")))
    assert any("rounding" in parts for parts in whole.values())
    assert whole.keys() == groups.keys()
    for name, parts in whole.items():
        assert groups[name] == pytest.approx(parts, rel=1e-4, abs=1e-9)


def _parts(result: Any) -> dict[str, dict[str, float]]:
    """By layer, what was measured."""
    found = ((x["name"], x["error_parts"] or {}) for x in result["layers"])
    return {
        name: {k: v for k, v in parts.items() if isinstance(v, (int, float))}
        for name, parts in found
    }
