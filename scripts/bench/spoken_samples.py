"""Speech for networks of sound: words and sentences that `espeak-ng` speaks, with noise.

Nothing of it is kept in the project.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import wave
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from scipy.signal import lfilter, resample_poly
from yardstick_tasks import Arrays, Task, only

Array = npt.NDArray[Any]
RATE = 16000
VOICES = [
    f"{accent}+{speaker}"
    for accent in ("en", "en-us", "en-gb-scotland", "en-gb-x-rp")
    for speaker in ("m1", "m3", "m5", "m7", "f1", "f2", "f4", "f5")
]
WORDS = (
    "alexa", "computer", "marvin", "weather", "kitchen", "window", "timer", "music", "garden",
    "seven", "yellow", "morning",
)  # fmt: skip
CLIP = 144160
"""What DNSMOS reads: 9.01 seconds."""


def can_speak() -> bool:
    """Whether there is a synthesizer."""
    return shutil.which("espeak-ng") is not None


@cache
def spoken(text: str, voice: str, speed: int, pitch: int) -> Array:
    """Speech from -1 to 1, float64 [time], at RATE."""
    words = ["espeak-ng", "--stdout", "-v", voice, "-s", str(speed), "-p", str(pitch), text]
    done = subprocess.run(words, capture_output=True, check=True)
    with wave.open(io.BytesIO(done.stdout)) as file:
        rate = file.getframerate()
        values = np.frombuffer(file.readframes(1 << 28), np.int16) / 32768
    return np.asarray(resample_poly(values, RATE // 50, rate // 50))


def said(text: str, rng: np.random.Generator) -> Array:
    """By one of the voices, at its own speed and pitch."""
    speed, pitch = int(rng.integers(120, 200)), int(rng.integers(20, 80))
    return spoken(text, str(rng.choice(VOICES)), speed, pitch)


def coloured(count: int, rng: np.random.Generator) -> Array:
    """Noise [count] of a root mean square of one, white to dark."""
    noise = lfilter([1], [1, -rng.uniform(0, 0.98)], rng.normal(size=count))
    return np.asarray(noise / noise.std())


def words(model: Path, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Words as openWakeWord's embedding reads them: features [N, 76, 32, 1] of its own front end,
    a word in the middle, and the numbers of the words."""
    front = ort.InferenceSession(str(model.with_name("melspectrogram.onnx")))
    chosen = rng.integers(0, len(WORDS), count)
    features = []
    for number in chosen:
        speech = said(WORDS[number], rng)
        clip = np.zeros(12800)
        start = max(0, (len(clip) - len(speech)) // 2)
        speech = speech[: len(clip) - start]
        clip[start : start + len(speech)] = speech * rng.uniform(0.2, 1)
        clip += coloured(len(clip), rng) * 10 ** rng.uniform(-3, -1.5)
        heard = (clip * 32767).astype(np.float32)[None]  # it reads 16-bit values as floats
        (spectrum,) = front.run(None, {front.get_inputs()[0].name: heard})
        features.append(np.squeeze(spectrum)[:76, :, None] / 10 + 2)
    return np.stack(features).astype(np.float32), chosen


def clips(count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Sentences of 9 seconds [N, CLIP], clean to noisy, some clipped, some muffled or echoing."""
    made = np.zeros((count, CLIP), np.float32)
    for number in range(count):
        text = " ".join(str(rng.choice(WORDS)) for _ in range(24))
        speech = np.resize(said(text, rng), CLIP) * rng.uniform(0.2, 1)
        if rng.random() < 0.3:  # an echo
            delay = int(rng.integers(400, 4000))
            speech[delay:] += rng.uniform(0.2, 0.6) * speech[:-delay]
        if rng.random() < 0.3:  # muffled
            speech = lfilter([1 - 0.8], [1, -0.8], speech)
        speech = speech + coloured(CLIP, rng) * 10 ** rng.uniform(-4, -1)
        if rng.random() < 0.3:  # too loud
            speech = speech * rng.uniform(2, 6)
        made[number] = np.clip(speech, -1, 1)
    return made, np.zeros(count)


def _deviations(outputs: Arrays, reference: Arrays) -> tuple[Array, Array]:
    """Of each sample the mean absolute error, and that of guessing FP32's mean: [samples]."""
    now, before = (np.asarray(only(x), np.float64) for x in (outputs, reference))
    guess = np.abs(before - before.mean(axis=0)).mean(axis=1)
    return np.abs(now - before).mean(axis=1), guess


def value_parts(outputs: Arrays, _: Arrays, reference: Arrays) -> Array:
    """One less the mean absolute error over that of guessing the mean: 1 as FP32, 0 as a guess."""
    error, guess = _deviations(outputs, reference)
    return np.stack([guess - error, guess], axis=1)


JUDGE_OF_SOUND = Task(
    "regression",
    value_parts,
    {"absolute error": lambda o, _, r: _deviations(o, r)[0]},
)
"""Values of which FP32's are the truth, as opinions on speech are."""
