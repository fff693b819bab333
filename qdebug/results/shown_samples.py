"""The samples that lose most, as people look at them: a picture, a text or a sound. They are in the
run file and on the page; the JSON has their numbers and losses only."""

from __future__ import annotations

from dataclasses import dataclass

from qdebug.result import MaybeText


@dataclass(frozen=True)
class ShownSound:
    """A waveform that the network gets.

    Attributes:
        url: the beginning of it as a WAV file, a data URL.
        heard_seconds: how long that file is.
        seconds: how long the waveform is.
    """

    url: str
    heard_seconds: float
    seconds: float


@dataclass(frozen=True)
class ShownSample:
    """A sample that loses much by the task.

    Attributes:
        sample: its number, counted from 0.
        lost: see SampleLoss.
        picture: a JPEG of the network's input, a data URL; null where it takes no pictures.
        text: what the network reads; null of other networks.
        sound: what it hears; null of other networks.
    """

    sample: int
    lost: float
    picture: MaybeText = ""
    text: MaybeText = ""
    sound: ShownSound | None = None
