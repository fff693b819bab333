"""What layers cost at the outputs, from the noise of runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdebug.metrics.accumulate import CANDIDATE, REFERENCE, Comparison, ExecutedBatch, compare_batch
from qdebug.metrics.effect import (
    Effect,
    EffectRuns,
    certain_ranks,
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


def test_an_estimate_makes_no_outputs_exact() -> None:
    """Errors that offset each other are larger alone than all together; of all samples a layer may
    make the whole error."""
    whole, rest, alone = np.array([1.0, 1.2]), np.array([0.3, 0.5]), np.array([2.0, 2.5])
    runs = EffectRuns(whole, {"a": rest}, {"a": alone, "b": alone}, whole, 0.5)
    effects = effects_of(runs)
    assert all(x.output_share is not None and x.output_share < 1 for x in effects.values())
    exact = effects_of(EffectRuns(whole, {"a": 0 * rest}, {"a": alone}, whole, 0.0))["a"]
    assert (exact.output_share, exact.output_share_std) == (1.0, 0.0)


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
