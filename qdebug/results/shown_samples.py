"""The samples that lose most by the task, as people look at them: what each run says of them. They
are in the run file and on the page; the JSON has their numbers and losses only."""

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
        says: a class or the text that was read; null of other metrics.
        boxes: the most certain first; null of a metric of something else.
        mask: a PNG of the classes, a data URL; null of a metric of something else.
    """

    of: str
    says: MaybeText = ""
    boxes: tuple[ShownBox, ...] | None = None
    mask: MaybeText = ""


@dataclass(frozen=True)
class ShownSample:
    """A sample that loses much.

    Attributes:
        sample: its number, counted from 0.
        lost: see SampleLoss.
        picture: a JPEG of the network's input, a data URL; null where it takes no pictures.
        height, width: of the network's input, in which boxes are; 0 without a picture.
        views: the truth where there are labels, then FP32's and the other run's.
    """

    sample: int
    lost: float
    picture: MaybeText
    height: int
    width: int
    views: tuple[SampleView, ...]
