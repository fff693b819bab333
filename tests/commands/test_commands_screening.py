"""Groups of layers that are divided until the worst are found, on planted noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdebug.analyse.effect.screening import Group, groups_of, screened
from qdebug.run.timelimit import OutOfTimeError
from qdebug.types import Array

NAMES = [f"layer{k}" for k in range(384)]


class Network:
    """Layers whose noises add up; counts what is measured."""

    def __init__(self, noise: Mapping[str, float], last: int | None = None) -> None:
        """The time is over after `last` calls."""
        self.noise, self.calls, self.measured = noise, 0, list[Group]()
        self._last = last

    def __call__(self, groups: Sequence[Group]) -> list[Array | None]:
        if self.calls == self._last:
            raise OutOfTimeError
        self.calls += 1
        self.measured += groups
        return [np.array([math.fsum(self.noise[n] for n in group)]) for group in groups]


@pytest.mark.parametrize("culprits", [(17,), (0, 383), (100, 101, 300), (5, 90, 200, 201, 340)])
def test_culprits_are_found_among_hundreds(culprits: tuple[int, ...]) -> None:
    noise = dict.fromkeys(NAMES, 1e-3) | {NAMES[k]: 1.0 + k / 1000 for k in culprits}
    network = Network(noise)
    found = screened(NAMES, 64, network)
    assert found is not None and len(network.measured) == 64
    leading = sorted(found.alone, key=lambda n: -float(found.alone[n].sum()))
    assert {*leading[: len(culprits)]} == {NAMES[k] for k in culprits}
    assert max(float(x.sum()) for x in found.undivided.values()) < 0.03


def test_overflows_are_found_one_after_the_other() -> None:
    noise = dict.fromkeys(NAMES, 1e-3) | {NAMES[k]: math.inf for k in (40, 41, 300)}
    found = screened(NAMES, 64, Network(noise))
    assert found is not None
    infinite = {name for name, x in found.alone.items() if math.isinf(x.sum())}
    assert infinite == {NAMES[k] for k in (40, 41, 300)}


def test_every_layer_at_once() -> None:
    noise = {name: float(k) for k, name in enumerate(NAMES)}
    network = Network(noise)
    found = screened(NAMES, None, network)
    assert found is not None and network.calls == 1 and not found.undivided
    assert noise == {n: float(x.sum()) for n, x in found.alone.items()}
    assert found.ranked[:3] == ["layer383", "layer382", "layer381"]


def test_what_was_found_in_time_stands() -> None:
    noise = dict.fromkeys(NAMES, 1.0)
    assert screened(NAMES, 64, Network(noise, last=0)) is None
    assert screened(NAMES, None, Network(noise, last=0)) is None
    found = screened(NAMES, 64, Network(noise, last=2))
    assert found is not None and len(found.groups) == 20
    assert {n for group in found.groups for n in group} == {*NAMES}


def test_a_group_that_cannot_be_run_is_left_out_and_one_half_keeps_the_whole() -> None:
    """The first group cannot be run, nor the first half of the last, the noisiest."""
    noise = {name: float(k + 1) for k, name in enumerate(NAMES)}
    network = Network(noise)

    def measure(groups: Sequence[Group]) -> list[Array | None]:
        fails = [g[0] == "layer0" or (g[0] == "layer360" and len(g) == 12) for g in groups]
        return [None if f else x for f, x in zip(fails, network(groups), strict=True)]

    found = screened(NAMES, 64, measure)
    assert found is not None
    assert tuple(NAMES[360:]) in found.groups
    assert {n for group in found.groups for n in group} == {*NAMES[24:]}
    assert len(network.measured) == len({*network.measured})


@pytest.mark.parametrize(("layers", "groups"), [(130, 56), (384, 64), (1536, 80), (10, 24)])
def test_enough_groups_to_come_down_to_single_layers(layers: int, groups: int) -> None:
    assert groups_of(layers) == groups
    names = [f"layer{k}" for k in range(layers)]
    found = screened(names, groups, Network(dict.fromkeys(names, 1e-4) | {"layer7": 1.0}))
    assert found is not None and found.ranked[:1] == ["layer7"] and "layer7" in found.alone


def test_leading_layers_are_of_different_groups() -> None:
    """Of equal layers, and where only one group makes noise, of which nothing is left to halve."""
    found = screened(NAMES, 24, Network(dict.fromkeys(NAMES, 1.0)))
    assert found is not None
    of = {name: group for group in found.groups for name in group}
    assert len({of[name] for name in found.ranked[:8]}) == 8
    network = Network(dict.fromkeys(NAMES, 0.0) | {"layer5": 1.0})
    found = screened(NAMES, 64, network)
    assert found is not None and "layer5" in found.alone
    assert len(network.measured) < 64  # groups without noise are not halved


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=90), st.integers(16, 200))
def test_groups_hold_each_layer_once(noise: list[float], runs: int) -> None:
    names = NAMES[: len(noise)]
    network = Network(dict(zip(names, noise, strict=True)))
    found = screened(names, runs, network)
    assert found is not None and len(network.measured) <= max(runs, 16)
    assert sorted(n for group in found.groups for n in group) == sorted(names)
    assert len(network.measured) == len({*network.measured})
    assert sum(float(x.sum()) for x in found.groups.values()) == pytest.approx(sum(noise))
