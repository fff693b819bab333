"""Recordings as the inputs of a network."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from refusals import refused
from scipy.io import wavfile

from qdebug.network.samples import open_samples, recordings
from qdebug.network.samples.groups import grouping_of
from qdebug.network.samples.opening import opened
from qdebug.network.samplespec import SampleSpec


def write(path: Path, values: Any, rate: int = 8000) -> Any:
    path.parent.mkdir(exist_ok=True, parents=True)
    wavfile.write(path, rate, values)
    return values


def ramp(count: int) -> Any:
    return np.linspace(-0.5, 0.5, count, dtype=np.float32)


@pytest.mark.parametrize(
    ("kind", "zero", "one"),
    [(np.int16, 0, 2**15), (np.int32, 0, 2**31), (np.uint8, 128, 2**7), (np.float32, 0, 1)],
)
def test_values_are_those_of_the_file(
    tmp_path: Path, make_spec: Any, kind: Any, zero: int, one: int
) -> None:
    expected = np.array([-0.5, 0, 0.25, 0.5])
    write(tmp_path / "a.wav", (expected * one + zero).astype(kind))
    samples = open_samples(str(tmp_path / "a.wav"), [make_spec("x", None, 1, 4)])
    assert samples.feeds(0, 1)["x"].tolist() == [[expected.tolist()]]
    assert "1 recording; 8000 Hz" in samples.origin.told


def test_channels_are_averaged(tmp_path: Path, make_spec: Any) -> None:
    write(tmp_path / "a.wav", np.array([[0.5, 0], [-1, 1]], np.float32))
    samples = open_samples(str(tmp_path), [make_spec("x", None, 2)])
    assert samples.feeds(0, 1)["x"].tolist() == [[0.25, 0]]


def test_shorter_ones_end_in_zeros_and_longer_ones_are_cut(tmp_path: Path, make_spec: Any) -> None:
    one, ten = write(tmp_path / "1.wav", ramp(3)), write(tmp_path / "10.wav", ramp(9))
    samples = open_samples(str(tmp_path), [make_spec("x", None, 5)])
    expected = [[*one, 0, 0], [*ten[:5]]]
    assert samples.feeds(0, 2)["x"].tolist() == np.array(expected).tolist()
    assert "1 padded with 0, 1 cut" in samples.origin.told


@pytest.mark.parametrize("length", [5, None])
def test_groups_by_folder(tmp_path: Path, make_spec: Any, length: int | None) -> None:
    """The folders by name, in whichever order they are samples."""
    for name, count in (("no", 4), ("no", 7), ("yes", 5)):
        write(tmp_path / name / f"{count}.wav", ramp(count))
    spec = SampleSpec(str(tmp_path), group="folder")
    grouping = grouping_of(spec.open([make_spec("x", None, 1, length)]))
    assert grouping is not None and grouping.counts == {"no": 2, "yes": 1}


def test_where_any_length_is_taken_each_has_its_own(tmp_path: Path, make_spec: Any) -> None:
    waves = [write(tmp_path / name / "a.wav", ramp(n)) for name, n in (("no", 4), ("yes", 7))]
    samples = open_samples(str(tmp_path), [make_spec("x", None, 1, None)])
    for k, wave in enumerate(waves):
        assert samples.feeds(k, 1)["x"].tolist() == [[wave.tolist()]]
    assert samples.extras["labels"].tolist() == [0, 1]
    assert "2 recordings in 2 classes by folder" in samples.origin.told


def test_folders_called_by_numbers_that_are_no_classes(tmp_path: Path, make_spec: Any) -> None:
    for name in ("5", "10"):
        write(tmp_path / "data" / name / "a.wav", ramp(3))
    output = onnx.helper.make_tensor_value_info("y", 1, ["N", 2])
    model = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [output]))
    onnx.save(model, tmp_path / "net.onnx")
    spec = SampleSpec(str(tmp_path / "data"), model=str(tmp_path / "net.onnx"))
    samples = spec.open([make_spec("x", None, 1, 3)])
    assert sorted(samples.extras["labels"].tolist()) == [0, 1]
    assert "numbered from 0 in the order 5, 10" in samples.origin.told
    bare = open_samples(str(tmp_path / "data"), [make_spec("x", None, 1, 3)])
    assert sorted(bare.extras["labels"].tolist()) == [5, 10] and bare.origin.numbered_folders == 2


@pytest.mark.parametrize("length", [3, None])
def test_one_channel_may_come_last(tmp_path: Path, make_spec: Any, length: int | None) -> None:
    wave = write(tmp_path / "a.wav", ramp(3))
    samples = open_samples(str(tmp_path), [make_spec("x", None, length, 1)])
    assert samples.feeds(0, 1)["x"].tolist() == [[[x] for x in wave.tolist()]]


def test_looking_at_them_decodes_none(
    tmp_path: Path, make_spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wave = write(tmp_path / "a.wav", (2**14 * ramp(4)).astype(np.int16), rate=16000)
    decode, seen = recordings.decoded, []
    monkeypatch.setattr(recordings, "decoded", lambda file: seen.append(file) or decode(file))
    samples = open_samples(str(tmp_path), [make_spec("x", None, None)])
    assert "16000 Hz" in samples.origin.told and not seen
    assert samples.feeds(0, 1)["x"].tolist() == [(wave / 2**15).tolist()] and seen


@pytest.mark.parametrize("kind", ["flac", "ogg", "aiff", "wav"])
def test_other_formats_by_soundfile(tmp_path: Path, make_spec: Any, kind: str) -> None:
    """FLAC and AIFF of 24 bits, as many recordings have; a WAV file of these is read by SciPy."""
    soundfile = pytest.importorskip("soundfile")
    wave = np.sin(np.arange(4000) / 20).astype(np.float32) / 2
    coded = {"subtype": "PCM_24"} if kind != "ogg" else {}
    soundfile.write(tmp_path / f"a.{kind}", wave, 16000, **coded)
    samples = open_samples(str(tmp_path), [make_spec("x", None, 4000)])
    assert "1 recording; 16000 Hz" in samples.origin.told
    error = np.abs(samples.feeds(0, 1)["x"][0] - wave)
    assert error.max() < (0.05 if kind == "ogg" else 2**-22)


def test_without_soundfile_it_says_what_to_install(
    tmp_path: Path, make_spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    (tmp_path / "a.flac").write_bytes(b"fLaC")
    with refused("QD-SAMPLES-EXTRA", "soundfile", "pip install"):
        open_samples(str(tmp_path), [make_spec("x", None, 4)])


def test_what_lies_beside_the_model_is_done(tmp_path: Path, make_spec: Any) -> None:
    wave = write(tmp_path / "wavs" / "a.wav", np.sin(np.arange(400) / 20).astype(np.float32))
    config = {"sampling_rate": 16000, "do_normalize": True}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    spec = SampleSpec(str(tmp_path / "wavs"), model=str(tmp_path / "onnx" / "model.onnx"))
    samples = opened(spec, [make_spec("x", None, None)])
    values = samples.feeds(0, 1)["x"][0]
    assert len(values) == 2 * len(wave)
    assert values.mean() == pytest.approx(0, abs=1e-6) and values.std() == pytest.approx(
        1, abs=1e-4
    )
    scaled = (wave - wave.mean()) / wave.std()
    assert np.abs(values[100:-100:2] - scaled[50:-50]).max() < 0.02
    assert (
        "resampled from 8000 Hz" in samples.origin.told
        and "preprocessor_config.json" in samples.origin.told
    )


def test_a_manifest_has_labels_and_texts(tmp_path: Path, make_spec: Any) -> None:
    for name in ("b", "a"):
        write(tmp_path / f"{name}.wav", ramp(4))
    rows = [{"audio_filepath": "b.wav", "text": "007"}, {"audio_filepath": "a.wav", "text": "x"}]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    samples = open_samples(str(tmp_path / "list.jsonl"), [make_spec("x", None, 4)])
    assert samples.extras["text"].tolist() == ["007", "x"]
    assert samples.origin.told.startswith("2 recordings with text (list.jsonl)")


def test_refusals(tmp_path: Path, make_spec: Any) -> None:
    waveform = make_spec("x", None, 4)
    write(tmp_path / "a.wav", ramp(4))
    with refused("QD-SAMPLES-RECORDING-INPUT", "'x' float32 [?, 80, 30]", "spectrograms"):
        open_samples(str(tmp_path), [make_spec("x", None, 80, 30)])
    write(tmp_path / "b.wav", ramp(4), rate=44100)
    with refused("QD-SAMPLES-RECORDING-RATE", "a.wav has 8000", "b.wav 44100"):
        open_samples(str(tmp_path), [waveform])
    (tmp_path / "b.wav").write_bytes(b"RIFF1234WAVE")
    with refused("QD-SAMPLES-RECORDING", "1 of 2 recordings", "b.wav", "skip_bad"):
        open_samples(str(tmp_path), [waveform])
    samples = opened(SampleSpec(str(tmp_path), skip_bad=True), [waveform])
    assert samples.count == 1 and "1 unreadable one left out" in samples.origin.told.replace(
        "(", ""
    )
