"""Waveforms made small for people: the same sound again, and never large."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from scipy.io import wavfile

from qdebug.network.samples import samples_in_memory
from qdebug.network.samples.opening import opened
from qdebug.network.samples.sounds import playable, waveform_of
from qdebug.network.samplespec import SampleSpec


def tone(seconds: float, rate: int, hertz: float = 440.0) -> Any:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype("f4")


def heard(url: str) -> tuple[int, Any]:
    assert url.startswith("data:audio/wav;base64,")
    rate, steps = wavfile.read(io.BytesIO(base64.b64decode(url.partition(",")[2])))
    assert steps.dtype == np.int16 and steps.nbytes <= 64_000
    return rate, steps / 32767


def test_a_short_one_is_as_it_was() -> None:
    values = tone(1, 16000)
    url, count = playable(values, 16000)
    rate, found = heard(url)
    assert rate == 16000 and count == len(values)
    assert np.abs(found - values).max() < 1e-4


def test_a_long_one_is_reduced_and_cut() -> None:
    url, count = playable(tone(10, 44100), 44100)
    rate, found = heard(url)
    assert rate == 8820 and count == 32000 * 5
    spectrum = np.abs(np.fft.rfft(found))
    assert abs(np.argmax(spectrum) * rate / 32000 - 440) < 1  # the same tone


def test_values_beyond_full_scale_are_scaled_down() -> None:
    loud = tone(0.1, 8000) * 20000
    assert np.abs(heard(playable(loud, 8000)[0])[1]).max() > 0.99


def test_arrays_are_sound_where_a_rate_is_told(make_spec: Any) -> None:
    wave, rate = make_spec("x", None, 4), make_spec("sr", None, dtype=np.int64)
    data = {"x": np.eye(3, 4, dtype=np.float32), "sr": np.full(3, 16000)}
    told = opened(SampleSpec(samples_in_memory(data)), [wave, rate])
    found = waveform_of(told, told.feeds(0, 1))
    assert found is not None and found[0].tolist() == [1, 0, 0, 0] and found[1] == 16000
    table = opened(SampleSpec(samples_in_memory({"x": data["x"]})), [wave])
    assert waveform_of(table, table.feeds(0, 1)) is None
