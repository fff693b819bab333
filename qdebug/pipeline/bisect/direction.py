"""Which way is better, where a metric is the user's own: --max-drop and --max-rise must fit it."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from qdebug.errors import MetricError, UsageError
from qdebug.measure.task import BUILT_IN
from qdebug.pipeline.bisect.setup import Setup
from qdebug.pipeline.evaluator import KeptReference
from qdebug.search.find import SearchResult


def direction_note(setup: Setup, search: SearchResult, reference: float | None) -> tuple[str, ...]:
    """A note where the metric is suspiciously good with nothing pinned, and it cannot be told
    whether more of it is better.

    Raises:
        UsageError: more of it is worse, and --max-drop was given; or the other way round.
    """
    target, baseline = setup.target, search.baseline
    if target.allowed is None or reference is None or baseline is None or baseline.value is None:
        return ()
    gained = (baseline.value - reference) * (1 if target.more_is_better else -1)
    if gained <= target.allowed or target.metric is None or target.metric.name in BUILT_IN:
        return ()
    flag, other = "--max-drop", "--max-rise"
    word, opposite, moves = "more", "less", "rises"
    if not target.more_is_better:
        flag, other, word, opposite, moves = other, flag, opposite, word, "falls"
    moved = f"{moves} from {reference:.6g} in FP32 to {baseline.value:.6g} with nothing pinned"
    spoilt = _of_shuffled_outputs(setup)
    if spoilt is None or spoilt == reference:
        return (f"The metric {moved}, and {flag} takes {word} as better; else write {other}.",)
    if (spoilt > reference) != target.more_is_better:
        return ()
    raise UsageError(
        f"{flag} takes {word} as better, but the metric is {reference:.6g} in FP32 and "
        f"{spoilt:.6g} with the outputs of other samples: {opposite} is better",
        f"Write {other} {target.allowed:g}.",
    )


def _of_shuffled_outputs(setup: Setup) -> float | None:
    """The metric of FP32's outputs, each sample with those of another; None where it fails."""
    graph, context = setup.model.graph, setup.context
    with closing(context.backend.open(graph.proto, [])) as session:
        task = KeptReference(context, graph, session, setup.searched, setup.target.metric).task
    assert task is not None  # it was measured before
    order = np.random.default_rng(0).permutation(setup.searched.count)
    if any(len(array) != len(order) for array in task.reference.values()):
        return None
    try:
        return task({name: array[order] for name, array in task.reference.items()})
    except MetricError:
        return None
