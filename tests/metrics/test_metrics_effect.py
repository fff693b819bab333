"""What layers cost at the outputs, from the noise of runs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdebug.metrics.accumulate import CANDIDATE, REFERENCE, Comparison, ExecutedBatch, compare_batch
from qdebug.metrics.effect import (
    Effect,
    EffectRuns,
    certain_ranks,
    chances_of,
    drawn,
    effects_of,
    noise_by_sample,
    output_energies,
    rank_key,
)
from qdebug.network.samples import Batch
from qdebug.types import Array


def linear_runs(
    layers: Array, few: int, population: int, redraw: float = 0.0, seed: int = 0
) -> EffectRuns:
    """Runs of a network whose outputs are the sum of each layer's error, [layers, samples, width];
    a change redraws part of each error."""
    rng = np.random.default_rng(seed)

    def noise(used: Array, count: int) -> Array:
        errors = layers[:, :count]
        fresh = rng.normal(size=errors.shape) * errors.std(axis=(1, 2), keepdims=True)
        mixed = np.sqrt(1 - redraw**2) * errors + redraw * fresh
        return np.asarray(np.square((used[:, None, None] * mixed).sum(axis=0)).sum(axis=1))

    everyone = np.ones(len(layers))
    names = [f"n{i}" for i in range(len(layers))]
    return EffectRuns(
        noise(everyone, few),
        {n: noise(everyone - np.eye(len(layers))[i], few) for i, n in enumerate(names)},
        {n: noise(np.eye(len(layers))[i], few) for i, n in enumerate(names)},
        noise(everyone, few),
        1 - few / population,
    )


@given(st.integers(2, 8), st.integers(0, 999))
def test_a_gain_is_the_own_noise_and_the_products_with_others(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    layers = rng.normal(size=(count, 5, 7)) * rng.lognormal(size=(count, 1, 1))
    effects = effects_of(linear_runs(layers, 5, 5))
    total = layers.sum(axis=0)
    noise = float(np.square(total).sum())
    for i in range(count):
        own = float(np.square(layers[i]).sum())
        product = float((layers[i] * (total - layers[i])).sum())
        effect = effects[f"n{i}"]
        assert effect.alone == pytest.approx(own)
        assert effect.gain == pytest.approx(own + 2 * product, abs=1e-9 * noise)
        # All samples took part: the share is the gain, without any doubt.
        assert effect.output_share == pytest.approx(effect.gain / noise, abs=1e-9)
        assert effect.output_share_std == 0.0


def test_few_noisy_samples_are_trusted_less_than_the_errors_alone() -> None:
    """The shares are nearer to the truth than the gains that were measured."""
    rng = np.random.default_rng(1)
    sizes = np.geomspace(1, 0.05, 12)[:, None, None]
    layers = rng.normal(size=(12, 4000, 2)) * sizes
    truth = sizes.ravel() ** 2 / (sizes**2).sum()
    wrong_gains, wrong_shares = [], []
    for seed in range(20):
        runs = linear_runs(layers[:, seed * 8 :], 8, 4000, redraw=0.7, seed=seed)
        total = float(runs.whole.sum())
        for i, effect in enumerate(effects_of(runs).values()):
            assert effect.gain is not None and effect.output_share is not None
            assert effect.output_share_std is not None and effect.output_share_std > 0
            wrong_gains.append((effect.gain / total - truth[i]) ** 2)
            wrong_shares.append((effect.output_share - truth[i]) ** 2)
    assert np.mean(wrong_shares) < 0.5 * np.mean(wrong_gains)


def test_a_layer_that_was_not_left_out_has_no_gain() -> None:
    runs = linear_runs(np.ones((2, 3, 4)), 3, 3)
    effects = effects_of(
        EffectRuns(runs.whole, {"n0": runs.pinned["n0"]}, runs.alone, runs.whole, 0.0)
    )
    assert effects["n0"].gain is not None
    assert effects["n1"].gain is None
    assert effects["n1"].output_share == pytest.approx(0.25)


def test_outputs_that_break() -> None:
    """The layer that makes them finite is first, then what breaks them alone, then by noise."""
    broken, fine = np.array([math.inf, 1.0]), np.array([0.1, 0.1])
    runs = EffectRuns(
        broken,
        {"cure": fine, "no cure": broken, "small": broken},
        {"cure": broken, "no cure": broken, "small": np.array([0.01, 0.0])},
        broken,
        0.0,
    )
    effects = effects_of(runs)
    assert effects["cure"].gain == math.inf
    assert effects["no cure"].gain is None and effects["no cure"].alone == math.inf
    assert all(e.output_share is None for e in effects.values())
    assert sorted(effects, key=lambda n: rank_key(effects[n], math.inf)) == [
        "cure",
        "no cure",
        "small",
    ]


def test_nothing_to_share_out() -> None:
    runs = linear_runs(np.zeros((3, 2, 2)), 2, 2)
    assert {e.output_share for e in effects_of(runs).values()} == {0.0}


def test_how_many_ranks_are_certain() -> None:
    def effect(share: float, std: float) -> Effect:
        return Effect(share, share, share, std)

    assert certain_ranks([effect(0.5, 0.1), effect(0.3, 0.1), effect(0.25, 0.1)], 1.0) == 1
    assert certain_ranks([effect(0.5, 0.2), effect(0.3, 0.2)], 1.0) == 0
    assert certain_ranks([effect(0.5, 0.0), effect(0.4, 0.0)], 1.0) == 2
    assert certain_ranks([Effect(math.inf, 1.0, None, None), effect(0.4, 0.0)], math.inf) == 2


def test_what_others_mask_stands_before_what_costs_less_alone() -> None:
    """Two layers each ruin the outputs: pinning one of them gives nothing."""
    ruins, small = Effect(0.01, 0.9, 0.012, 0.0), Effect(0.02, 0.02, 0.025, 0.0)
    assert rank_key(ruins, 0.8) < rank_key(small, 0.8)
    gains = Effect(0.6, 0.9, 0.75, 0.0)  # not masked: by its share
    assert rank_key(gains, 0.8) < rank_key(small, 0.8)


@given(st.integers(1, 4), st.integers(0, 99))
def test_the_noise_is_that_of_the_comparison(outputs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [f"y{i}" for i in range(outputs)]
    reference = {n: rng.normal(size=(6, 2, 3)).astype(np.float32) for n in names}
    candidate = {n: a + rng.normal(size=a.shape).astype(np.float32) for n, a in reference.items()}
    if seed % 3 == 0:
        candidate[names[0]][2, 0, 0] = np.nan
    executed = ExecutedBatch(Batch(0, 0, 6), {}, {REFERENCE: reference, CANDIDATE: candidate})
    by_sample = noise_by_sample(output_energies(reference, candidate, names, 6))
    assert by_sample.shape == (6,)
    expected = compare_batch(Comparison(), executed).noise()
    assert float(by_sample.sum()) == pytest.approx(expected, rel=1e-6)


def test_outputs_that_do_not_fit() -> None:
    x = {"y": np.ones((5, 2), np.float32)}
    assert (
        output_energies(x, {"y": np.ones((4, 2), np.float32)}, ["y"], 5)[0, 0].tolist()
        == [math.inf] * 5
    )
    assert output_energies(x, x, ["y"], 3).shape == (1, 2, 1)  # rows that are no samples


@settings(max_examples=60)
@given(
    st.lists(st.floats(0, 1e6), min_size=2, max_size=60).map(np.asarray),
    st.floats(0.05, 1.0),
)
def test_noisy_samples_are_drawn_and_all_may_be(noise: np.ndarray, part: float) -> None:
    count = max(1.0, part * len(noise))
    chances = chances_of(noise, count)
    assert chances.sum() == pytest.approx(count)
    assert (chances > 0).all() and (chances <= 1).all()
    least = 0.5 * count / len(noise)
    assert (chances >= min(1.0, least) * (1 - 1e-9)).all()
    order = np.argsort(noise)
    assert (np.diff(chances[order]) >= -1e-9).all()
    found = drawn(chances)
    assert abs(len(found) - count) < 1.5 and found == sorted(set(found))
    assert {*np.flatnonzero(chances >= 1)} <= {*found}


def test_what_few_samples_hold_is_not_missed() -> None:
    """One sample of a hundred makes most of the noise, in which one layer has its share."""
    rng = np.random.default_rng(5)
    whole = rng.exponential(size=100)
    whole[37] = 400.0
    gain = 0.1 * whole * rng.uniform(0.5, 1.5, size=100)
    gain[37] = 300.0
    chances = chances_of(whole, 16)
    found = drawn(chances)
    energies = np.stack([whole, np.full(100, 2.0)])[None]
    rest = np.stack([whole - gain, np.full(100, 2.0)])[None]
    chance = chances[found]
    runs = EffectRuns(
        whole=noise_by_sample(energies[:, :, found], chance),
        pinned={"a": noise_by_sample(rest[:, :, found], chance)},
        alone={},
        whole_alone=noise_by_sample(energies[:, :, found], chance),
        unseen=1 - chance,
    )
    effect = effects_of(runs)["a"]
    assert effect.output_share is not None and effect.output_share_std is not None
    truth = gain.sum() / whole.sum()
    assert effect.output_share == pytest.approx(truth, abs=0.03)
    assert 0 < effect.output_share_std < 0.05


def grouped(share: float, gain: float, std: float) -> EffectRuns:
    """A group of 12 layers that makes that share alone; one of them was left out on 4 of 16
    samples, with a gain of that mean and standard error; "alone" makes the rest."""
    spread = np.array([-1.0, 1.0, -1.0, 1.0]) * std * math.sqrt(3 / (1 - 4 / 16)) / 4
    whole = np.full(4, 0.25)
    return EffectRuns(
        whole=whole,
        pinned={"g0": whole - gain / 4 - spread},
        alone={"alone": np.full(2, (1 - share) / 2)},
        whole_alone=np.full(2, 0.5),
        unseen=1 - 4 / 16,
        groups={tuple(f"g{k}" for k in range(12)): np.full(2, share / 2)},
    )


def test_a_culprit_in_a_group_is_as_certain_as_its_measurement() -> None:
    """An even part of a group says little about one layer: 0.4 ± 0.03 stays near 0.4; what may well
    be nothing, 0.05 ± 0.1, comes near the even part."""
    effects = effects_of(grouped(0.4, 0.4, 0.03))
    assert effects.keys() == {"alone", "g0"} and effects["g0"].alone is None
    assert effects["g0"].output_share == pytest.approx(0.38, abs=0.02)
    assert effects["g0"].output_share_std == pytest.approx(0.03, abs=0.005)
    quiet = effects_of(grouped(0.1, 0.05, 0.1))["g0"]
    assert quiet.output_share == pytest.approx(0.1 / 12, abs=0.01)


def test_the_share_of_the_noisiest_group() -> None:
    runs = grouped(0.4, 0.4, 0.03)
    assert runs.group_share == pytest.approx(0.4)
    (group,) = runs.groups
    assert replace(runs, pinned=dict.fromkeys(group, runs.whole)).group_share is None
    assert replace(runs, groups={}).group_share is None
    broken = {group: np.array([math.inf, 0.1])}
    assert replace(runs, groups=broken).group_share == math.inf
    assert replace(runs, groups=broken, whole_alone=broken[group]).group_share is None
