"""Waveforms as a network gets them, made small for people to hear."""

from __future__ import annotations

import base64
import io
import math

import numpy as np

from qdebug.network.samples.recordings import is_waveform, listening_beside
from qdebug.network.samples.samples import Samples
from qdebug.types import Array, Feeds

_BYTES = 64_000
"""Of a recording, 16 bits each value: four seconds at 8 kHz. Eight of them in base64 take 0.7 MB of
a page."""
_LEAST_RATE = 8000
"""Values per second that remain of a long one: those of a telephone."""
_RATE_INPUTS = "sr", "sample_rate", "sampling_rate"
"""What inputs are called that hold the rate: the first is silero-vad's."""


def waveform_of(samples: Samples, feed: Feeds) -> tuple[Array, int] | None:
    """The waveform of one sample, float32 [values], and its values per second; None where the
    samples are not known to be sound.

    They are where they were recordings, where a preprocessor_config.json beside the model or an
    input of the network tells a rate.

    Raises:
        SampleError: that file is damaged.
    """
    taken = next((spec for spec in samples.inputs if is_waveform(spec)), None)
    if taken is None:
        return None
    told = [feed[name] for name in _RATE_INPUTS if name in feed and feed[name].size == 1]
    rate = samples.origin.rate or listening_beside(samples.spec.model).rate
    if rate is None and told and told[0].dtype.kind in "iu":
        rate = int(told[0].reshape(())[()])
    values = np.nan_to_num(feed[taken.name].reshape(-1).astype(np.float32))
    return (values, rate) if rate is not None and rate > 0 and values.size else None


def level_of(values: Array) -> float:
    """What 1 stands for in a recording: 1, or the largest magnitude where that is greater, as it is
    of waveforms that were normalized or are in steps of 16 bits."""
    return max(1.0, float(np.abs(values).max()))


def playable(values: Array, rate: int) -> tuple[str, int]:
    """The beginning of a waveform as a WAV file of 16 bits, a data URL of at most `_BYTES` before
    base64, and how many of `values` it holds.

    A long one is reduced by a whole factor, down to no less than `_LEAST_RATE` values per second,
    and what is left is cut.
    """
    from scipy.io import wavfile
    from scipy.signal import resample_poly

    most = _BYTES // 2
    factor = max(1, min(math.ceil(len(values) / most), rate // _LEAST_RATE))
    heard = values[: most * factor]
    small = resample_poly(heard, 1, factor) if factor > 1 else heard
    steps = np.clip(np.rint(small * (32767 / level_of(values))), -32768, 32767).astype(np.int16)
    file, reduced = io.BytesIO(), round(rate / factor)
    wavfile.write(file, reduced, steps)
    url = f"data:audio/wav;base64,{base64.b64encode(file.getvalue()).decode()}"
    return url, len(heard)
