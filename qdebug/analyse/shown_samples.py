"""The samples that lose most, as people look at them."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

from qdebug.analyse.compared import Compared
from qdebug.analyse.run_file import sample_part
from qdebug.network.preprocessing import layout_of, picture_input
from qdebug.network.samples import Samples
from qdebug.network.samples.sounds import playable, waveform_of
from qdebug.network.samples.texts import texts_of
from qdebug.network.samples.thumbnails import pixels_of, thumbnail
from qdebug.results.shown_samples import ShownSample, ShownSound
from qdebug.types import Feeds

_MOST = 8
"""Samples that are shown: with a picture of each a page grows by 200 kB, with a sound by 700 kB."""
_LONGEST = 600
"""Characters of a text that the network reads: six lines beside each other."""


def with_shown_samples(compared: Compared) -> Compared:
    """With those of the samples that lose most by the metric that there is something to be seen of:
    the picture, where Pillow is installed, the text or the sound.

    Raises:
        SampleError: the samples cannot be read.
    """
    task, samples = compared.result.metric, compared.samples
    worst = task.worst[:_MOST] if task else ()
    feeds = {loss.sample: _feed_of(samples, loss.sample) for loss in worst}
    texts, found = texts_of(samples, feeds), []
    for loss in worst:
        feed, text = feeds[loss.sample], texts.get(loss.sample, "")
        shown = ShownSample(
            loss.sample,
            loss.lost,
            _picture(samples, feed),
            text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…",
            _sound(samples, feed),
        )
        if shown.picture or shown.text or shown.sound:
            found.append(shown)
    return replace(compared, shown=tuple(found))


def _feed_of(samples: Samples, sample: int) -> Feeds:
    """The inputs of one sample, which may be executed with others only."""
    batch = next(b for b in samples.batches() if b.start <= sample < b.start + b.count)
    feeds = samples.feeds(batch.start, batch.count)
    return {n: sample_part(a, sample - batch.start, batch.count) for n, a in feeds.items()}


def _picture(samples: Samples, feed: Feeds) -> str:
    """The picture that the network gets; "" where its input takes none, or without Pillow."""
    taken = picture_input(samples.inputs)
    layout = layout_of(taken) if taken is not None else None
    if taken is None or layout is None or find_spec("PIL") is None:
        return ""
    how = samples.spec.preprocessing
    return thumbnail(pixels_of(feed[taken.name][0], how, (how.layout if how else None) or layout))


def _sound(samples: Samples, feed: Feeds) -> ShownSound | None:
    """The waveform that the network gets; None where it takes none."""
    waveform = waveform_of(samples, feed)
    if waveform is None:
        return None
    values, rate = waveform
    url, heard = playable(values, rate)
    return ShownSound(url, heard / rate, len(values) / rate)
