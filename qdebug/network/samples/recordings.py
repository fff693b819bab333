"""Recordings of sound, and what becomes of them for a network that takes waveforms: samples of -1
to 1, one channel, at one rate. WAV files are read by SciPy, all others by soundfile."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from qdebug.errors import SampleError, is_about_memory, required
from qdebug.inputfiles import read_text
from qdebug.network.dataformats import FORMATS
from qdebug.network.samples.arrays import ArrayInMemory, ComputedRows
from qdebug.network.samples.damage import reading
from qdebug.network.samples.feed_files import FeedFiles
from qdebug.network.samples.file_set import FileSet, UnreadableError, refuse_bad
from qdebug.network.samples.found_preprocessing import folders_beside
from qdebug.network.samples.matching import inputs_text
from qdebug.network.samples.samples import Origin, PreparedSamples, SampleArray
from qdebug.network.samplespec import SampleSpec
from qdebug.types import Array, Feeds, TensorSpec
from qdebug.wording import counted

SUFFIXES = frozenset(next(f for f in FORMATS if f.name == "recordings").endings)
_AS_RECORDINGS = "recording", "QD-SAMPLES-RECORDING"
"""How messages call them, and the code of what cannot be decoded."""
_VARIANCE = 1e-7
"""That Hugging Face's Wav2Vec2FeatureExtractor adds to the variance."""


def is_recording(path: Path) -> bool:
    """Whether its name ends as that of a recording."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


@dataclass(frozen=True)
class Listening:
    """How a recording becomes a waveform.

    Attributes:
        rate: in Hz, to which others are resampled; None takes the recordings'.
        normalized: to the mean 0 and the variance 1 of each.
        source: where it was found, for people.
    """

    rate: int | None = None
    normalized: bool = False
    source: str = ""


@dataclass(frozen=True)
class Recordings(FileSet):
    """Recordings in a stable order, and what is known of each."""

    def prepared(self, spec: SampleSpec, inputs: Sequence[TensorSpec]) -> PreparedSamples:
        """The waveforms: stacked where the network takes a fixed number of values, or where all
        have as many; else one by one.

        Raises:
            SampleError: it takes no waveform, a file cannot be read, or they differ in their rate.
        """
        taken = _waveform_input(inputs, spec.data)
        used = self
        if spec.limit is not None:
            used = used.kept(range(min(spec.limit, len(used.files))))
        lengths, rates, bad = _surveyed(used.files)
        left_out = ""
        if bad:
            if not spec.skip_bad or len(bad) == len(used.files):
                refuse_bad(used.files, bad, spec.data, *_AS_RECORDINGS)
            left_out = f" ({counted(len(bad), 'unreadable one')} left out)"
            used = used.kept([k for k in range(len(used.files)) if k not in bad])
        if not used.files:
            raise SampleError(
                f"{spec.data}: holds no recordings.", "Add some.", code="QD-SAMPLES-EMPTY"
            )
        used, others = used.grouped(spec).numbered_as(spec.model)
        how = listening_beside(spec.model)
        rate = how.rate or _only(rates, used.files, spec.data)
        how = replace(how, rate=rate)
        sizes = [math.ceil(n * rate / own) for n, own in zip(lengths, rates, strict=True)]
        axis = _axis_of_values(taken)
        wanted = taken.shape[axis]
        length = wanted if isinstance(wanted, int) else None
        told = f"{used.holds}{left_out}; {_told(how, rates, length, sizes)}{others}"
        origin = Origin(told, rate=rate, numbered_folders=len(used.folders))
        shape = [1] * len(taken.shape)

        def feed(number: int) -> Feeds:
            shape[axis] = -1
            values = waveform(used.files[number], how).reshape(shape).astype(taken.dtype)
            labels = {n: a[number : number + 1] for n, a in used.labels.items()}
            return {taken.name: values, **labels}

        def row(number: int) -> Array:
            values = waveform(used.files[number], how)[:cut]
            padded = np.zeros(shape[1:], taken.dtype)
            padded.reshape(-1)[: len(values)] = values
            return padded

        if length is None and len(set(sizes)) > 1:
            names = [*map(str, used.files)]
            feeds = FeedFiles(range(len(names)), feed, names.__getitem__)
            return PreparedSamples(feeds, spec, origin)
        shape[axis] = cut = length or sizes[0]
        arrays: dict[str, SampleArray] = {
            taken.name: ComputedRows((len(used.files), *shape[1:]), taken.dtype, row),
            **{name: ArrayInMemory(array) for name, array in used.labels.items()},
        }
        return PreparedSamples(arrays, spec, origin)


def _waveform_input(inputs: Sequence[TensorSpec], where: str) -> TensorSpec:
    """The only input, [samples, values], [samples, 1, values] or [samples, values, 1].

    Raises:
        SampleError: it is something else.
    """
    if len(inputs) == 1 and is_waveform(inputs[0]):
        return inputs[0]
    raise SampleError(
        f"{where}: holds recordings, and the model does not take a waveform, [samples, values], "
        f"[samples, 1, values] or [samples, values, 1]: {inputs_text(inputs)}.",
        "Features such as spectrograms are given as arrays by input name (.npz), or by a function "
        "that computes them: script.py:function.",
        code="QD-SAMPLES-RECORDING-INPUT",
    )


def is_waveform(taken: TensorSpec) -> bool:
    """Whether an input may take a waveform: two axes, or a third one of a single channel."""
    shape = taken.shape
    return taken.dtype.kind == "f" and (len(shape) == 2 or (len(shape) == 3 and 1 in shape[1:]))


def _axis_of_values(taken: TensorSpec) -> int:
    """Where the values of a waveform are: last, unless one channel is."""
    return 1 if len(taken.shape) == 3 and taken.shape[1] != 1 else len(taken.shape) - 1


def listening_beside(model: str) -> Listening:
    """What Hugging Face's preprocessor_config.json beside a model says.

    Raises:
        SampleError: it is damaged.
    """
    for folder in folders_beside(model):
        file = folder / "preprocessor_config.json"
        if not file.is_file():
            continue
        with reading(file, "Write it again, or move it away.", "QD-SAMPLES-PREPROCESSING"):
            data = json.loads(read_text(file))
            if data.get("sampling_rate") is not None:
                normalized = bool(data.get("do_normalize", False))
                return Listening(int(data["sampling_rate"]), normalized, str(file))
    return Listening()


def _only(rates: Sequence[int], files: Sequence[Path], where: str) -> int:
    """The rate of all recordings.

    Raises:
        SampleError: they have several.
    """
    other = next((k for k, rate in enumerate(rates) if rate != rates[0]), None)
    if other is None:
        return rates[0]
    raise SampleError(
        f"{where}: {files[0].name} has {rates[0]} samples per second and {files[other].name} "
        f"{rates[other]}, and nothing says what the model takes.",
        "Give recordings of one rate, or a preprocessor_config.json with sampling_rate beside the "
        "model.",
        code="QD-SAMPLES-RECORDING-RATE",
    )


def _told(how: Listening, rates: Sequence[int], length: int | None, sizes: Sequence[int]) -> str:
    parts = [f"{how.rate} Hz, one channel, -1 to 1"]
    if any(rate != how.rate for rate in rates):
        parts.append(f"resampled from {', '.join(map(str, sorted(set(rates) - {how.rate})))} Hz")
    if how.normalized:
        parts.append("each with mean 0 and variance 1")
    if how.source:
        parts[-1] += f" (from {how.source})"
    if length is None:
        parts.append("as long as they are")
    else:
        cut, padded = sum(n > length for n in sizes), sum(n < length for n in sizes)
        seconds = f"{length} values ({length / (how.rate or 1):.3g} s)"
        done = [f"{padded} padded with 0"] * bool(padded) + [f"{cut} cut"] * bool(cut)
        parts.append(f"{seconds}{': ' * bool(done)}{', '.join(done)}")
    return ", ".join(parts)


def _surveyed(files: Sequence[Path]) -> tuple[list[int], list[int], dict[int, str]]:
    """The length and the rate of each recording that can be read, and why others cannot."""
    lengths, rates, bad = [], [], {}
    for number, file in enumerate(files):
        try:
            length, rate = _measured(file)
        except UnreadableError as error:
            bad[number] = str(error)
            continue
        lengths.append(length)
        rates.append(rate)
    return lengths, rates, bad


def _measured(file: Path) -> tuple[int, int]:
    """The length of a recording, in values, and its rate, by its header where that tells them.

    Raises:
        UnreadableError: it is none.
        SampleError: soundfile is needed, and not installed.
    """
    if _is_wav(file):
        # Values of 24 bits cannot be mapped into memory.
        with _readable(), suppress(ValueError, OSError):
            rate, values = _wav(file, mapped=True)
            if values.size and rate:
                return len(values), rate
        whole, rate = decoded(file)
        return len(whole), rate
    with _readable():
        about = _soundfile(file).info(file)
    if not about.frames or not about.samplerate:
        raise UnreadableError("it holds no sound")
    return int(about.frames), int(about.samplerate)


def decoded(file: Path) -> tuple[Array, int]:
    """The values of a recording, float32 [values], -1 to 1, the mean of its channels; and its rate.

    Whole numbers are divided by the largest magnitude of their type: 2^15 of 16 bits.

    Raises:
        UnreadableError: it is none.
        SampleError: soundfile is needed, and not installed.
    """
    with _readable():
        if _is_wav(file):
            rate, values = _wav(file)
        else:
            values, rate = _soundfile(file).read(file, dtype="float32")
    if not values.size or not rate:
        raise UnreadableError("it holds no sound")
    if values.dtype.kind in "iu":
        middle = 128 if values.dtype.kind == "u" else 0  # 8 bits are unsigned
        half = 2.0 ** (8 * values.dtype.itemsize - 1)
        values = (values.astype(np.float64) - middle) / half
    mono = values.mean(axis=1) if values.ndim > 1 else values
    return mono.astype(np.float32), int(rate)


def _is_wav(file: Path) -> bool:
    return file.suffix.lower() == ".wav"


def _wav(file: Path, *, mapped: bool = False) -> tuple[int, Array]:
    from scipy.io import wavfile

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wavfile.WavFileWarning)  # chunks without sound
        rate, values = wavfile.read(file, mmap=mapped)
    return int(rate), values


def _soundfile(file: Path) -> Any:
    user = f"{file}: a recording that is no WAV file"
    return required("soundfile", user, code="QD-SAMPLES-EXTRA", error=SampleError)


@contextmanager
def _readable() -> Iterator[None]:
    """Errors within say that a recording is unreadable.

    Raises:
        UnreadableError: it is.
        SampleError: as within.
    """
    try:
        yield
    except SampleError:
        raise
    except Exception as error:  # SciPy raises what a damaged header leads it to
        if is_about_memory(error):
            raise
        why = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UnreadableError(why) from error


def waveform(file: Path, how: Listening) -> Array:
    """A recording as the network hears it, float32 [values].

    Raises:
        SampleError: it cannot be read any more.
    """
    try:
        values, rate = decoded(file)
    except UnreadableError as error:
        refuse_bad([file], {0: str(error)}, str(file.parent), *_AS_RECORDINGS)
    if how.rate not in (None, rate):
        from scipy.signal import resample_poly

        shared = math.gcd(how.rate, rate)
        values = resample_poly(values, how.rate // shared, rate // shared).astype(np.float32)
    if how.normalized:
        values = (values - values.mean()) / np.sqrt(values.var() + _VARIANCE)
    return values
