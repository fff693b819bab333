"""Metrics by name, each next to what another computation gives."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from scipy.special import expit, softmax
from scipy.stats import spearmanr

from qdebug.metrics.tasks.facts import ModelFacts
from qdebug.metrics.tasks.load import load_metric
from qdebug.metrics.tasks.masks import masks_of
from qdebug.metrics.tasks.text import Lines, ctc_loss, greedy

seeds = given(st.integers(0, 100))


def score(name: str, found: Any, labels: Any = None, reference: Any = None) -> float:
    given_labels = {} if labels is None else {"labels": np.asarray(labels)}
    other = {} if reference is None else {"y": np.asarray(reference)}
    return load_metric(name)({"y": np.asarray(found)}, given_labels, other)


@seeds
def test_top5_looks_at_five_places(seed: int) -> None:
    random = np.random.default_rng(seed)
    scores, truth = random.standard_normal((40, 8)), random.integers(0, 8, 40)
    highest = np.argsort(scores, axis=1)[:, -5:]
    assert score("top5", scores, truth) == np.mean((highest == truth[:, None]).any(axis=1))
    assert score("top5", scores[:, :5], truth % 5) == 1
    scores[np.arange(40), truth] = np.nan
    assert score("top5", scores, truth) == 0 == score("top5", scores, truth + 8)


@seeds
def test_f1_is_the_harmonic_mean_of_precision_and_recall(seed: int) -> None:
    random = np.random.default_rng(seed)
    scores, truth = random.standard_normal((40, 4)), random.integers(0, 4, 40)
    chosen = scores.argmax(axis=1)
    values = []
    for c in range(4):
        hits = np.sum((chosen == c) & (truth == c))
        precision, recall = (hits / max(1, np.sum(a == c)) for a in (chosen, truth))
        values.append(2 * precision * recall / (precision + recall) if hits else 0.0)
    assert score("f1", scores, truth) == pytest.approx(np.mean(values))


@seeds
def test_auroc_counts_pairs(seed: int) -> None:
    random = np.random.default_rng(seed)
    scores, truth = random.integers(0, 6, 30) / 6, random.integers(0, 2, 30)
    truth[:2] = 0, 1
    pairs = [
        (own > other) + (own == other) / 2
        for own in scores[truth == 1]
        for other in scores[truth == 0]
    ]
    assert score("auroc", scores[:, None], truth) == pytest.approx(np.mean(pairs))
    both = np.stack([1 - scores, scores], axis=1)
    assert score("auroc", both, truth) == pytest.approx(np.mean(pairs))


def test_auroc_of_one_class_says_nothing() -> None:
    with refused("QD-METRIC-LABELS", "auroc"):
        score("auroc", np.zeros((4, 1)), np.zeros(4, int))


@seeds
def test_recall_looks_at_the_nearest_others(seed: int) -> None:
    random = np.random.default_rng(seed)
    points, truth = random.standard_normal((12, 3)), random.integers(0, 3, 12)
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    for k in (1, 4):
        right = []
        for i, own in enumerate(unit):
            others = sorted((j for j in range(12) if j != i), key=lambda j: -float(own @ unit[j]))
            right.append(any(truth[j] == truth[i] for j in others[:k]))
        assert score(f"recall@{k}", points, truth) == pytest.approx(np.mean(right))
    assert load_metric("recall").name == "recall@1"
    with refused("QD-METRIC-UNKNOWN", "recall@0"):
        load_metric("recall@0")


@seeds
def test_errors_of_values(seed: int) -> None:
    random = np.random.default_rng(seed)
    found, truth = random.standard_normal((6, 5)), random.standard_normal((6, 5))
    assert score("mae", found, truth) == pytest.approx(np.abs(found - truth).mean())
    assert score("rmse", found, truth) == pytest.approx(np.sqrt(np.square(found - truth).mean()))
    rank = spearmanr(found.ravel(), truth.ravel()).statistic
    assert score("spearman", found, truth.reshape(6, 5, 1)) == pytest.approx(rank)
    cosines = [
        f @ t / np.linalg.norm(f) / np.linalg.norm(t) for f, t in zip(found, truth, strict=True)
    ]
    assert score("cosine", found, reference=truth) == pytest.approx(np.mean(cosines))
    with refused("QD-METRIC-LABELS", "[6, 5]", "[3]"):
        score("mae", found, np.zeros(3))


@pytest.mark.parametrize(("unit", "low"), [(1.0, 0.0), (255.0, 0.0), (2.0, -1.0)])
def test_pictures_are_judged_by_their_range(unit: float, low: float) -> None:
    random = np.random.default_rng(0)
    truth = random.random((3, 1, 24, 24))
    truth[..., :2] = 0, 1
    found = np.clip(truth + 0.05 * random.standard_normal(truth.shape), 0, 1)
    db = np.mean(
        [-10 * np.log10(np.square(f - t).mean()) for f, t in zip(found, truth, strict=True)]
    )
    pair = [low + unit * a for a in (found, truth)]
    assert score("psnr", *pair) == pytest.approx(db)
    if not low:  # luminance counts, and so does what 0 is
        assert score("ssim", *pair) == pytest.approx(score("ssim", found, truth), abs=1e-6)
    assert score("psnr", pair[1], pair[1]) == pytest.approx(100)
    assert score("ssim", pair[1], pair[1]) == pytest.approx(1)


def test_ssim_is_the_papers_formula() -> None:
    """One window over the whole picture, computed literally."""
    random = np.random.default_rng(0)
    truth = random.random((1, 1, 11, 11))
    found = np.clip(truth + 0.1 * random.standard_normal(truth.shape), 0, 1)
    at = np.arange(11) - 5
    window = np.exp(-(at[:, None] ** 2 + at**2) / (2 * 1.5**2))
    window /= window.sum()
    x, y = found[0, 0], truth[0, 0]
    mx, my = (window * x).sum(), (window * y).sum()
    vx, vy = (window * (x - mx) ** 2).sum(), (window * (y - my) ** 2).sum()
    shared = (window * (x - mx) * (y - my)).sum()
    expected = (2 * mx * my + 1e-4) * (2 * shared + 9e-4)
    expected /= (mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4)
    assert score("ssim", found, truth) == pytest.approx(expected)


@seeds
def test_miou_counts_pixels(seed: int) -> None:
    random = np.random.default_rng(seed)
    scores, truth = random.standard_normal((3, 4, 5, 5)), random.integers(0, 4, (3, 5, 5))
    truth[:, 0] = 255
    chosen = scores.argmax(axis=1)
    judged = truth != 255
    values = []
    for c in range(4):
        one, other = (chosen == c) & judged, (truth == c) & judged
        if (one | other).any():
            values.append((one & other).sum() / (one | other).sum())
    assert score("miou", scores, truth) == pytest.approx(np.mean(values))
    assert score("miou", chosen, truth[:, None]) == pytest.approx(np.mean(values))


def test_one_plane_is_a_mask_of_two_classes() -> None:
    logits = np.array([[[[-1.0, 2.0], [0.5, -3.0]]]])
    expected = [[[0, 1], [1, 0]]]
    assert masks_of({"y": logits}).classes.tolist() == expected
    shares = 1 / (1 + np.exp(-logits))
    assert masks_of({"y": shares[:, 0]}).classes.tolist() == expected
    with refused("QD-METRIC-OUTPUT", "[1, 2]"):
        masks_of({"y": np.zeros((1, 2))})


def frames(text: str, alphabet: str, blank_last: bool = False) -> Any:
    """One-hot frames of a path, - for the blank."""
    symbols = alphabet + "-" if blank_last else "-" + alphabet
    return np.eye(len(symbols))[[symbols.index(c) for c in text]][np.newaxis]


@pytest.mark.parametrize("blank_last", [False, True])
def test_greedy_reading_joins_repetitions_and_drops_blanks(blank_last: bool) -> None:
    facts = ModelFacts({}, {}, {"character": "a\nb\nc"})
    path = frames("--aa-ab-cc -", "abc ", blank_last)
    lines = greedy({"y": path}, facts, blank_last=blank_last)
    assert lines.texts == ("aabc ",) and lines.characters == tuple("abc ")
    unnamed = greedy({"y": path}, ModelFacts({}, {}), blank_last=blank_last)
    assert len(unnamed.texts[0]) == 5 and unnamed.characters is None
    for each in (lines, unnamed):
        assert each.classes_of(each.texts[0]) == [n + (not blank_last) for n in (0, 0, 1, 2, 3)]


def test_error_rates_are_what_the_library_gives() -> None:
    library = pytest.importorskip("jiwer")
    facts = ModelFacts({}, {}, {"character": "a\nb\nc"})
    read = ["ab c-", "bb-b ", "c-c-c"]
    outputs = {"y": np.concatenate([frames(text, "abc ") for text in read])}
    truth = ["ab c", "ab b", "cc"]
    found = greedy(outputs, facts).texts
    assert found == ("ab c", "bb ", "ccc")
    for name in ("cer", "wer"):
        metric = load_metric(name, None, facts)
        value = metric(outputs, {"text": np.array(truth)}, outputs)
        assert value == pytest.approx(getattr(library, name)(truth, list(found)))
        assert load_metric(f"{name}-to-reference", None, facts)(outputs, {}, outputs) == 0
    # Where nothing stands, what is read are insertions; the library refuses it.
    value = load_metric("cer", None, facts)(outputs, {"text": np.array(["ab c", "", "ccc"])}, {})
    assert value == pytest.approx(3 / 7)


@given(st.integers(0, 100), st.booleans(), st.booleans())
def test_the_loss_of_a_line_counts_all_paths(seed: int, soft: bool, blank_last: bool) -> None:
    """Next to the sum over every path of four frames that reads the text."""
    random = np.random.default_rng(seed)
    scores = random.standard_normal((1, 4, 3))
    text = "".join(random.choice(["a", "b"], random.integers(0, 4)))
    facts = ModelFacts({}, {}, {"character": "a\nb"})
    shares = softmax(scores, axis=2)
    found = greedy({"y": shares if soft else scores}, facts, blank_last=blank_last)
    symbols = "ab-" if blank_last else "-ab"
    whole = 0.0
    for path in itertools.product(range(3), repeat=4):
        joined = "".join(symbols[k] for k, _ in itertools.groupby(path)).replace("-", "")
        if joined == text:
            whole += float(np.prod(shares[0, range(4), path]))
    expected = -np.log(whole) if whole else -4 * np.log(1e-7)
    assert ctc_loss(found, Lines((text,)), found) == pytest.approx(expected)


def test_the_loss_of_embeddings_is_the_margin_between_neighbours() -> None:
    random = np.random.default_rng(0)
    points, truth = random.standard_normal((10, 4)), np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 3])
    moved = points + 0.2 * random.standard_normal(points.shape)

    def margin(all_points: Any, i: int) -> float:
        unit = all_points / np.linalg.norm(all_points, axis=1, keepdims=True)
        others = [j for j in range(10) if j != i]
        near = {alike: [float(unit[i] @ unit[j]) for j in others if (truth[j] == truth[i]) == alike]
                for alike in (True, False)}  # fmt: skip
        return max(near[True]) - max(near[False])

    spread = np.std([margin(points, i) for i in range(9)])
    expected = [*(expit(-margin(moved, i) / spread) for i in range(9)), 0.0]
    loss = load_metric("recall@1").loss
    assert loss is not None
    found = loss({"y": moved}, {"labels": truth}, {"y": points})
    np.testing.assert_allclose(found, expected)


def test_text_is_read_by_a_function_of_the_users(tmp_path: Any) -> None:
    pytest.importorskip("jiwer")
    file = tmp_path / "read.py"
    file.write_text(
        "def text(outputs):\n    return [chr(97 + n) for n in outputs['y'][:, 0]]\n"
        "def joined(outputs):\n    return ''.join(text(outputs))\n"
        "def fewer(outputs):\n    return text(outputs)[1:]\n"
    )
    outputs, reference = {"y": np.array([[0], [1], [2]])}, {"y": np.array([[0], [1], [3]])}
    metric = load_metric("cer-to-reference", f"{file}:text")
    assert metric(outputs, {}, reference) == pytest.approx(1 / 3)
    assert metric.loss is not None
    assert metric.loss(outputs, {}, reference).tolist() == [0, 0, 1]
    for function in ("joined", "fewer"):
        with refused("QD-METRIC-DECODE", f"read.py:{function}", "3 samples"):
            load_metric("cer-to-reference", f"{file}:{function}")(outputs, {}, reference)
    with refused("QD-METRIC-DECODE", "'yolov8'", "text", "ctc-last"):
        load_metric("cer-to-reference", "yolov8")


def test_text_without_labels_or_characters() -> None:
    pytest.importorskip("jiwer")
    outputs = {"y": np.eye(4)[np.newaxis]}
    with refused("QD-METRIC-LABELS", "'text'", "cer-to-reference"):
        load_metric("cer")(outputs, {}, outputs)
    with refused("QD-METRIC-DECODE", "characters"):
        load_metric("cer")(outputs, {"text": np.array(["a"])}, outputs)


@pytest.mark.parametrize(
    ("shape", "metadata", "instead"),
    [
        ((None, 22, 2100), {"names": str(dict.fromkeys(range(18), ""))}, "map-to-reference"),
        ((None, 19, 64, 64), {}, "or none: then the SQNR"),
        ((None, 40, 97), {"character": "a\nb"}, "cer-to-reference"),
        ((None, 40, 97), {}, "cosine"),
    ],
)
def test_what_is_no_classifier_is_told_what_fits(
    shape: Any, metadata: dict[str, str], instead: str
) -> None:
    facts = ModelFacts({}, {"y": shape}, metadata)
    with refused("QD-METRIC-NOT-A-CLASSIFIER", instead):
        load_metric("agreement", None, facts)
    flat = ModelFacts({}, {"y": (None, 10, 1, 1)})
    assert load_metric("agreement", None, flat).facts == flat


@pytest.mark.parametrize("name", ["top1", "f1", "auroc", "agreement"])
@pytest.mark.parametrize("shape", [(-1, 1), (-1,), (-1, 1, 1)])
def test_one_score_is_of_the_second_of_two_classes(name: str, shape: tuple[int, ...]) -> None:
    """A probability or a logit, as by both classes' scores."""
    random = np.random.default_rng(0)
    logits, labels = random.normal(size=24), {"labels": random.integers(0, 2, 24)}
    changed = logits + random.normal(size=24)
    metric = load_metric(name)

    def score(of: Any) -> float:
        return metric({"y": of(changed)}, labels, {"y": of(logits)})

    expected = score(lambda z: np.stack([-z, z], axis=1))
    assert score(lambda z: z.reshape(shape)) == expected
    assert score(lambda z: (1 / (1 + np.exp(-z))).reshape(shape)) == expected
    # As quantized with a range a little wide.
    assert score(lambda z: (1.004 / (1 + np.exp(-z)) - 0.002).reshape(shape)) == expected
