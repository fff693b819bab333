"""The samples that lose most, as people look at them: the picture, the text or the sound, and what
each run says of them. They are in the run file and on the page; the JSON has their numbers and
losses only."""

from __future__ import annotations

from dataclasses import dataclass

from qdebug.result import MaybeText


@dataclass(frozen=True)
class ShownBox:
    """A box on a picture.

    Attributes:
        corners: x1, y1, x2, y2 in pixels of the network's input.
        label: its class, by name where that is known.
        score: null of a labelled one.
        right: of a found box, it is one of the true ones; of a true box, it was found by the run
            under test.
    """

    corners: tuple[float, float, float, float]
    label: str
    score: float | None
    right: bool


@dataclass(frozen=True)
class SampleView:
    """What is so, or what a run says, of a sample.

    Attributes:
        of: "truth", or the precision of the run, such as "FP32".
        says: a class, the text that was read, a few values, or the sample whose embedding is
            nearest; null of other metrics.
        boxes: the most certain first; null of a metric of something else.
        mask: a PNG of the classes, or of the single objects that boxes are around, a data URL; null
            of a metric of something else.
    """

    of: str
    says: MaybeText = ""
    boxes: tuple[ShownBox, ...] | None = None
    mask: MaybeText = ""


@dataclass(frozen=True)
class ShownSound:
    """A waveform that the network gets.

    Attributes:
        url: the beginning of it as a WAV file, a data URL.
        heard_rate, heard_seconds: of that file.
        rate: of the waveform, in values per second. seconds: how long it is.
        curve: the least and the greatest value of each part of it, all equally long, -1 to 1.
    """

    url: str
    heard_rate: int
    heard_seconds: float
    rate: int
    seconds: float
    curve: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class ShownSample:
    """A sample that loses much.

    Attributes:
        sample: its number, counted from 0.
        lost: see SampleLoss; null where samples are ranked by the noise at the outputs.
        sqnr_db: of the outputs; null where they are ranked by the metric.
        picture: a JPEG of the network's input, a data URL; null where it takes no pictures.
        height, width: of the network's input, in which boxes are; 0 without a picture.
        views: the truth where there are labels, then FP32's and the other run's.
        text: what the network reads; null of other networks.
        sound: what it hears; null of other networks.
    """

    sample: int
    lost: float | None
    sqnr_db: float | None
    picture: MaybeText
    height: int
    width: int
    views: tuple[SampleView, ...]
    text: MaybeText = ""
    sound: ShownSound | None = None
