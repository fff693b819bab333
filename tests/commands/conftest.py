from __future__ import annotations

import math

import pytest

from qdebug.analyse.effect import effects as effect
from qdebug.analyse.effect import screening


@pytest.fixture
def in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """What layers of a network of 14 cost is measured in groups, as if it had a billion weights, in
    the simulation: to be compared with brute force."""
    monkeypatch.setattr(screening, "_FIRST_GROUPS", 4)
    monkeypatch.setattr(effect, "groups_of", lambda layers: 10)
    monkeypatch.setattr(effect, "_GROUPS_SAVE", 1)
    monkeypatch.setattr(effect, "_LEAST_LEADERS", 3)
    monkeypatch.setattr(effect, "_PASSES_OF_COMPARE", 0)
    monkeypatch.setattr(effect, "_RUNS_PAY_MACS", math.inf)
    monkeypatch.setattr(effect, "macs_per_sample", lambda *_: 1e12)
