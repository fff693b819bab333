"""The samples that lose most, as people look at them."""

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
from qdebug.metrics.tasks.base import TaskMetric, first_output, join_outputs
from qdebug.metrics.tasks.boxes.agreement import OVERLAP
from qdebug.metrics.tasks.boxes.detections import Detections, matched
from qdebug.metrics.tasks.boxes.instance_masks import plane_of
from qdebug.metrics.tasks.classes import chosen_classes
from qdebug.metrics.tasks.kinds import reading
from qdebug.metrics.tasks.registry import built_in
from qdebug.metrics.tensor import sqnr_db
from qdebug.network.preprocessing import layout_of, picture_input
from qdebug.network.samples import Samples
from qdebug.network.samples.found_preprocessing import Metadata, class_names
from qdebug.network.samples.sounds import curve_of, playable, waveform_of
from qdebug.network.samples.texts import texts_of
from qdebug.network.samples.thumbnails import mask_thumbnail, pixels_of, thumbnail
from qdebug.results.shown_samples import SampleView, ShownBox, ShownSample, ShownSound
from qdebug.types import Array, Feeds

_MOST = 8
"""Samples that are shown: with a picture of each a page grows by 200 kB, with a sound by 700 kB."""
_OF_CLUSTER = 2
"""Of samples that fail alike, that are among them: there are four clusters at most."""
_MOST_BOXES = 100
"""Of a picture: with more of them nothing can be told."""
_LONGEST = 200
"""Characters of a text that was read."""
_LONGEST_INPUT = 600
"""Characters of a text that the network reads: six lines beside each other."""
_FEW = 6
"""Values of an output that are told as they are."""


def with_shown_samples(compared: Compared) -> Compared:
    """With those of the samples that lose most that there is something to be seen of: the picture,
    where Pillow is installed, the text or the sound, and what each run says of it. Those are by the
    metric; without one the noisiest, where some of them fail alike.

    Raises:
        MetricError: the outputs cannot be read.
        SampleError: the samples cannot.
    """
    ranked, samples, metric = _ranked(compared), compared.samples, compared.gate.metric
    if not ranked:
        return compared
    feeds = {shown.sample: _feed_of(samples, shown.sample) for shown in ranked}
    views = _views(compared, metric, list(feeds)) if metric is not None else {}
    texts = texts_of(samples, feeds)
    found = []
    for shown in ranked:
        feed, text = feeds[shown.sample], texts.get(shown.sample, "")
        pixels = _pixels(compared, feed)
        picture, size = ("", (0, 0)) if pixels is None else (thumbnail(pixels), pixels.shape[:2])
        whole = replace(
            shown,
            picture=picture,
            height=size[0],
            width=size[1],
            views=views.get(shown.sample, ()),
            text=text if len(text) <= _LONGEST_INPUT else f"{text[:_LONGEST_INPUT]}…",
            sound=_sound(samples, feed),
        )
        if whole.picture or whole.text or whole.sound or any(view.says for view in whole.views):
            found.append(whole)
    return replace(compared, shown=tuple(found))


def _ranked(compared: Compared) -> list[ShownSample]:
    """Which samples are shown, without what there is to be seen of them, the worst first."""
    task, clusters = compared.result.metric, compared.result.clusters
    each = clusters.each if clusters else ()
    if task is not None and task.worst:
        lost = {loss.sample: loss.lost for loss in task.worst}
        chosen = _chosen(list(lost), [cluster.samples for cluster in each])
        return [ShownSample(sample, lost[sample], None, "", 0, 0, ()) for sample in chosen]
    noise = compared.sinks.noise.noise
    if noise is None or not each:
        return []
    chosen = _chosen(np.argsort(-noise).tolist(), [cluster.samples for cluster in each])
    return [
        ShownSample(sample, None, sqnr_db(1.0, float(noise[sample])), "", 0, 0, ())
        for sample in chosen
    ]


def _chosen(ranking: Sequence[int], clusters: Sequence[Sequence[int]]) -> list[int]:
    """The first of a ranking, with some of each cluster among them."""
    alike = [[n for n in ranking if n in cluster][:_OF_CLUSTER] for cluster in clusters]
    order = dict.fromkeys([*(n for cluster in alike for n in cluster), *ranking])
    chosen = set(islice(order, _MOST))
    return [n for n in ranking if n in chosen]


def _feed_of(samples: Samples, sample: int) -> Feeds:
    """The inputs of one sample, which may be executed with others only."""
    batch = next(b for b in samples.batches() if b.start <= sample < b.start + b.count)
    feeds = samples.feeds(batch.start, batch.count)
    return {n: sample_part(a, sample - batch.start, batch.count) for n, a in feeds.items()}


def _pixels(compared: Compared, feed: Feeds) -> Array | None:
    """The picture that the network gets; None where its input takes none, or without Pillow."""
    taken = picture_input(compared.pair.reference.inputs)
    layout = layout_of(taken) if taken is not None else None
    if taken is None or layout is None or find_spec("PIL") is None:
        return None
    how = compared.samples.spec.preprocessing
    return pixels_of(feed[taken.name][0], how, (how.layout if how else None) or layout)


def _sound(samples: Samples, feed: Feeds) -> ShownSound | None:
    waveform = waveform_of(samples, feed)
    if waveform is None:
        return None
    values, rate = waveform
    url, heard_rate, heard = playable(values, rate)
    return ShownSound(url, heard_rate, heard / rate, rate, len(values) / rate, curve_of(values))


def _outputs(keeper: OutputKeeper, sample: int) -> dict[str, Array]:
    """The outputs of one sample, [1, …]."""
    batch = next(b for b in keeper.by_batch if b.start <= sample < b.start + b.count)
    kept = keeper.by_batch[batch]
    parts = {n: [sample_part(a, sample - batch.start, batch.count)] for n, a in kept.items()}
    return join_outputs(parts, [1])


@dataclass(frozen=True)
class _Sides:
    """What is found in both runs of one sample, as a metric takes it; `truth` is None where the
    reference is it."""

    sample: int
    reference: Any
    candidate: Any
    truth: Any
    names: Mapping[int, str]

    @property
    def each(self) -> list[Any]:
        """The truth, where there is one, and both runs."""
        found = [self.reference, self.candidate]
        return found if self.truth is None else [self.truth, *found]

    def class_of(self, number: int) -> str:
        """The name of a class, or its number where it has none."""
        return self.names.get(number, str(number))


_Seen = Callable[[_Sides], list[dict[str, Any]]]
"""What is to be seen of a sample: fields of a SampleView, for each of its sides."""


def _views(
    compared: Compared, metric: TaskMetric, rows: Sequence[int]
) -> dict[int, tuple[SampleView, ...]]:
    """What is so and what each run says, of some samples, by number."""
    entry = built_in(metric.name)
    if entry is None:
        return {}
    if metric.settled is not None:
        metric = metric.settled(compared.sinks.keepers[0].joined()) or metric
    read, facts = reading(entry, metric.facts, metric.decode), metric.facts
    names = class_names(Metadata(facts.metadata)) if facts is not None else {}
    runs = "FP32", compared.result.precision.upper()
    titles = ("truth", *runs) if metric.needs_labels else runs
    extras = dict(compared.samples.extras) if metric.needs_labels else {}
    seen: _Seen | None = _SEEN.get(metric.takes)
    views = {}
    for row in rows:
        before, after = (_outputs(keeper, row) for keeper in compared.sinks.keepers)
        reference, candidate = read.found(before, before), read.found(after, before)
        truth = None
        if metric.needs_labels:
            labels = {name: array[row : row + 1] for name, array in extras.items()}
            truth = read.from_labels(labels, reference)
        if seen is None or (seen is _values and metric.name == "cosine" and reference.size > _FEW):
            seen = _neighbours(compared, rows)
        said = seen(_Sides(row, reference, candidate, truth, names))
        views[row] = tuple(SampleView(of, **what) for of, what in zip(titles, said, strict=True))
    return views


def _classes(sides: _Sides) -> list[dict[str, Any]]:
    def said(scores: Array) -> str:
        chosen = int(chosen_classes(scores)[0])
        if chosen < 0:
            return "NaN"
        return f"{sides.class_of(chosen)} (score {scores[0, chosen]:.3g})"

    found = [{"says": said(side)} for side in (sides.reference, sides.candidate)]
    return found if sides.truth is None else [{"says": sides.class_of(int(sides.truth[0]))}, *found]


def _texts(sides: _Sides) -> list[dict[str, Any]]:
    return [{"says": line.texts[0][:_LONGEST] or "(nothing)"} for line in sides.each]


def _masks(sides: _Sides) -> list[dict[str, Any]]:
    return [{"mask": mask_thumbnail(mask.classes[0])} for mask in sides.each]


def _boxes(sides: _Sides) -> list[dict[str, Any]]:
    """Boxes that count as found, with their masks where there are any. Those of the runs are
    compared with the true ones, and these with the candidate's; without labels FP32's are the true
    ones."""
    reference, candidate = sides.reference.sure, sides.candidate.sure
    pairs = [(reference, candidate), (candidate, reference)]
    if sides.truth is not None:
        truth = sides.truth
        pairs = [(truth, candidate), (reference, truth), (candidate, truth)]
    found = []
    for own, others in pairs:
        said: dict[str, Any] = {"boxes": _compared_boxes(own, others, sides)}
        if own.masks is not None:
            masks = own.masks_of(0)[:_MOST_BOXES]
            said["mask"] = mask_thumbnail(plane_of(masks, sides.reference.mask_size))
        found.append(said)
    return found


def _compared_boxes(own: Detections, others: Detections, sides: _Sides) -> tuple[ShownBox, ...]:
    same = {k for k, _ in matched(own, others, 0, OVERLAP)}
    of_each = zip(*(array.tolist() for array in own.of(0)), strict=True)
    return tuple(
        ShownBox(
            tuple(corners),
            sides.names.get(label, str(label)),
            None if own is sides.truth else score,
            k in same,
        )
        for k, (corners, score, label) in islice(enumerate(of_each), _MOST_BOXES)
    )


def _values(sides: _Sides) -> list[dict[str, Any]]:
    """The values of the output, where they are few."""
    rows = [np.asarray(side[0]).reshape(-1) for side in sides.each]
    few = all(row.size <= _FEW for row in rows)
    return [{"says": ", ".join(f"{value:.4g}" for value in row) if few else ""} for row in rows]


def _neighbours(compared: Compared, rows: Sequence[int]) -> _Seen:
    """Which other sample has the nearest embedding in both runs, and its text where it is one."""
    found = [_nearest(first_output(keeper.joined()), rows) for keeper in compared.sinks.keepers]
    numbers = {number for each in found for number, _ in each.values()}
    samples = compared.samples
    texts = texts_of(samples, {number: _feed_of(samples, number) for number in numbers})

    def said(number: int, cosine: float) -> str:
        text = texts.get(number, "")[:_LONGEST]
        return f"nearest: sample {number}, cosine {cosine:.3f}{f': {text}' if text else ''}"

    def seen(sides: _Sides) -> list[dict[str, Any]]:
        both = [{"says": said(*each[sides.sample])} for each in found]
        if sides.truth is None:
            return both
        return [{"says": sides.class_of(int(sides.truth[0]))}, *both]

    return seen


def _nearest(embeddings: Array, rows: Sequence[int]) -> dict[int, tuple[int, float]]:
    """The nearest other sample of each row of [samples, …] by cosine, and that."""
    flat = embeddings.reshape(len(embeddings), -1).astype(np.float64)
    norms = np.linalg.norm(flat, axis=1, keepdims=True)
    unit = np.nan_to_num(flat / np.where(norms > 0, norms, 1))
    found = {}
    for row in rows:
        cosines = unit @ unit[row]
        cosines[row] = -np.inf
        nearest = int(np.argmax(cosines))
        found[row] = nearest, float(cosines[nearest])
    return found


_SEEN: Mapping[str, _Seen] = {
    "scores": _classes,
    "text": _texts,
    "mask": _masks,
    "boxes": _boxes,
    "values": _values,
}
"""What is to be seen, by what the metric takes, besides embeddings."""
