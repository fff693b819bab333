"""The samples that lose most by the task, as people look at them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import islice
from typing import Any

import numpy as np

from qdebug.analyse.compared import Compared
from qdebug.analyse.run_file import sample_part
from qdebug.execute.evaluator import OutputKeeper
from qdebug.metrics.tasks.base import Float64, TaskMetric
from qdebug.metrics.tasks.boxes.agreement import OVERLAP
from qdebug.metrics.tasks.boxes.detections import Int64, matched
from qdebug.metrics.tasks.classes import chosen_classes
from qdebug.metrics.tasks.kinds import reading
from qdebug.metrics.tasks.registry import built_in
from qdebug.network.preprocessing import layout_of, picture_input
from qdebug.network.samples.found_preprocessing import Metadata, class_names
from qdebug.network.samples.thumbnails import mask_thumbnail, pixels_of, thumbnail
from qdebug.results.shown_samples import SampleView, ShownBox, ShownSample
from qdebug.types import Array

_MOST = 8
"""Samples that are shown: with a picture of each a page grows by 200 kB."""
_MOST_BOXES = 100
"""Of a picture: with more of them nothing can be told."""
_LONGEST = 200
"""Characters of a text."""


def with_shown_samples(compared: Compared) -> Compared:
    """With those of the metric's worst samples that there is something to be seen of: the picture,
    where Pillow is installed, and what each run says of it.

    Raises:
        MetricError: the outputs cannot be read.
        SampleError: the samples cannot.
    """
    metric, task = compared.gate.metric, compared.result.metric
    if metric is None or task is None or not task.worst:
        return compared
    worst = task.worst[:_MOST]
    views = _views(compared, metric, [loss.sample for loss in worst])
    shown = []
    for loss, says in zip(worst, views, strict=True):
        pixels = _pixels(compared, loss.sample)
        picture, size = ("", (0, 0)) if pixels is None else (thumbnail(pixels), pixels.shape[:2])
        if picture or any(view.says for view in says):
            shown.append(ShownSample(loss.sample, loss.lost, picture, size[0], size[1], says))
    return replace(compared, shown=tuple(shown))


def _pixels(compared: Compared, sample: int) -> Array | None:
    """The picture that the network gets; None where its input takes none, or without Pillow."""
    samples, taken = compared.samples, picture_input(compared.pair.reference.inputs)
    layout = layout_of(taken) if taken is not None else None
    if taken is None or layout is None or find_spec("PIL") is None:
        return None
    how = samples.spec.preprocessing
    batch = next(b for b in samples.batches() if b.start <= sample < b.start + b.count)
    feeds = samples.feeds(batch.start, batch.count)
    values = sample_part(feeds[taken.name], sample - batch.start, batch.count)
    return pixels_of(values[0], how, (how.layout if how else None) or layout)


def _outputs(keeper: OutputKeeper, rows: Sequence[int]) -> dict[str, Array]:
    """The outputs of some samples, [samples, …], without those of all others."""
    parts: dict[str, list[Array]] = {}
    for row in rows:
        batch = next(b for b in keeper.by_batch if b.start <= row < b.start + b.count)
        for name, array in keeper.by_batch[batch].items():
            parts.setdefault(name, []).append(sample_part(array, row - batch.start, batch.count))
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


@dataclass(frozen=True)
class _Sides:
    """What is found in both runs, and the truth, each of the samples that are shown; `truth` is
    None where the reference is it."""

    reference: Any
    candidate: Any
    truth: Any
    names: Mapping[int, str]


def _views(
    compared: Compared, metric: TaskMetric, rows: Sequence[int]
) -> list[tuple[SampleView, ...]]:
    """What is so and what each run says, of some samples."""
    entry, seen = built_in(metric.name), _SEEN.get(metric.takes)
    if entry is None or seen is None:
        return [() for _ in rows]
    read = reading(entry, metric.facts, metric.decode)
    reference, candidate = (read.found(_outputs(keeper, rows)) for keeper in compared.sinks.keepers)
    truth = None
    if metric.needs_labels:
        extras = compared.samples.extras
        labels = {name: array[np.array(rows)] for name, array in extras.items()}
        truth = read.from_labels(labels, reference)
    facts = metric.facts
    names = class_names(Metadata(facts.metadata)) if facts is not None else {}
    sides = _Sides(reference, candidate, truth, names)
    titles = (
        *(["truth"] if truth is not None else []),
        "FP32",
        compared.result.precision.upper(),
    )
    return [
        tuple(
            SampleView(title, **said)
            for title, said in zip(titles, seen(sides, number), strict=True)
        )
        for number in range(len(rows))
    ]


def _classes(sides: _Sides, number: int) -> list[dict[str, Any]]:
    def said(scores: Array) -> str:
        chosen = int(chosen_classes(scores[number : number + 1])[0])
        if chosen < 0:
            return "NaN"
        score = float(scores[number].reshape(-1)[chosen])
        return f"{sides.names.get(chosen, chosen)} (score {score:.3g})"

    found = [{"says": said(side)} for side in (sides.reference, sides.candidate)]
    if sides.truth is None:
        return found
    true = int(sides.truth[number])
    return [{"says": f"{sides.names.get(true, true)}"}, *found]


def _texts(sides: _Sides, number: int) -> list[dict[str, Any]]:
    lines = [side for side in (sides.truth, sides.reference, sides.candidate) if side is not None]
    return [{"says": line.texts[number][:_LONGEST] or "(nothing)"} for line in lines]


def _masks(sides: _Sides, number: int) -> list[dict[str, Any]]:
    masks = [side for side in (sides.truth, sides.reference, sides.candidate) if side is not None]
    return [{"mask": mask_thumbnail(mask.classes[number])} for mask in masks]


def _boxes(sides: _Sides, number: int) -> list[dict[str, Any]]:
    """Boxes that count as found. Those of the runs are compared with the true ones, and these with
    the candidate's; without labels FP32's are the true ones."""
    reference, candidate = (side.sure.of(number) for side in (sides.reference, sides.candidate))
    pairs = [(reference, candidate), (candidate, reference)]
    if sides.truth is not None:
        true = sides.truth.of(number)
        pairs = [(true, candidate), (reference, true), (candidate, true)]
    labelled = sides.truth is not None
    return [
        {"boxes": _compared_boxes(own, others, sides.names, labelled=labelled and k == 0)}
        for k, (own, others) in enumerate(pairs)
    ]


_Boxes = tuple[Float64, Float64, Int64]
"""Of one sample: see Detections.of."""


def _compared_boxes(
    own: _Boxes, others: _Boxes, names: Mapping[int, str], *, labelled: bool
) -> tuple[ShownBox, ...]:
    same = {k for k, _ in matched(own[0], own[2], others[0], others[2], OVERLAP)}
    x1, y1, x2, y2 = own[0].T.tolist() if len(own[0]) else ([], [], [], [])
    of_each = zip(zip(x1, y1, x2, y2, strict=True), own[1].tolist(), own[2].tolist(), strict=True)
    return tuple(
        ShownBox(corners, names.get(label, str(label)), None if labelled else score, k in same)
        for k, (corners, score, label) in islice(enumerate(of_each), _MOST_BOXES)
    )


_SEEN: Mapping[str, Callable[[_Sides, int], list[dict[str, Any]]]] = {
    "scores": _classes,
    "text": _texts,
    "mask": _masks,
    "boxes": _boxes,
}
"""What is to be seen, by what the metric takes; of embeddings and values, the picture alone."""
