"""What `qdebug compare` costs on a folder of pictures beside the same samples in an `.npz`.

Both sides run in fresh processes, in turn: the same model, the same arrays, of which one side
decodes its own from JPEGs of 640x480. Printed are wall time, processor time and peak memory of
each, and their ratios; all also for a quarter of the pictures, which shows whether memory grows.

    python scripts/bench/bench_pictures.py MODEL.onnx [--pictures 2000] [--rounds 2]
        [--preprocess FILE.yaml]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common import parser_of, watch_memory
from PIL import Image

from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.network.samples.opening import opened
from qdebug.network.samplespec import SampleSpec

_WIDTH, _HEIGHT = 640, 480
_WRITTEN = 64
"""Samples that are turned into arrays at once."""


def main() -> None:
    """Make the pictures, run both sides, and print what they took."""
    parser = parser_of(__doc__, pictures=2000, rounds=2)
    parser.add_argument("model", type=Path)
    parser.add_argument("--preprocess", help="as of compare")
    parser.add_argument("--directory", help="on the disk to write to")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as name:
        folder = Path(name)
        pictures = folder / "pictures"
        pictures.mkdir()
        for number in range(given.pictures):
            _picture(number).save(pictures / f"{number}.jpg", quality=90)
        arrays = folder / "samples.npz"
        _save_arrays(given, pictures, arrays)
        best: dict[str, _Cost] = {}
        for _ in range(given.rounds):
            for kind, data in (("npz", arrays), ("pictures", pictures)):
                cost = _cost(given, data, folder, given.pictures)
                best[kind] = min(best.get(kind, cost), cost)
        best["a quarter"] = _cost(given, pictures, folder, given.pictures // 4)
        for name, cost in best.items():
            print(f"{name:10} {cost.wall:7.1f} s wall {cost.cpu:7.1f} s CPU {cost.peak:7.0f} MB")
        ours, floor = best["pictures"], best["npz"]
        print(
            f"pictures / npz: wall {ours.wall / floor.wall:.2f}, CPU {ours.cpu / floor.cpu:.2f}, "
            f"memory {ours.peak / floor.peak:.2f}"
        )


def _picture(number: int) -> Image.Image:
    """Clouds with grain: as hard to decode as a photo."""
    random = np.random.default_rng(number)
    small = Image.fromarray(random.integers(0, 256, (9, 12, 3), np.uint8))
    clouds = np.asarray(small.resize((_WIDTH, _HEIGHT), Image.Resampling.BICUBIC), np.float64)
    grain = random.normal(0, 6, clouds.shape)
    return Image.fromarray(np.clip(clouds + grain, 0, 255).astype(np.uint8))


def _save_arrays(given: argparse.Namespace, pictures: Path, target: Path) -> None:
    """What the pictures become, as an `.npz`, a few at a time."""
    inputs = prepare_model(read_model(given.model)).graph.inputs
    spec = SampleSpec(str(pictures), model=str(given.model), preprocess=given.preprocess)
    samples = opened(spec, inputs)
    (taken,) = inputs
    first = samples.feeds(0, 1)[taken.name]
    shape = (samples.count, *first.shape[1:])
    whole = np.lib.format.open_memmap(target.with_suffix(".npy"), "w+", first.dtype, shape)
    size = _WRITTEN if samples.batch_is_free else samples.batch_size
    for start in range(0, samples.count, size):
        count = min(size, samples.count - start)
        whole[start : start + count] = samples.feeds(start, count)[taken.name]
    np.savez(target, **{taken.name: whole})
    target.with_suffix(".npy").unlink()


@dataclass(frozen=True, order=True)
class _Cost:
    """Of a process: seconds of processors, seconds on the wall, megabytes at its peak."""

    cpu: float
    wall: float
    peak: float


def _cost(given: argparse.Namespace, data: Path, folder: Path, samples: int) -> _Cost:
    """What comparing the first `samples` costs."""
    run = folder / "run.h5"
    command = [sys.executable, "-m", "qdebug", "compare", str(given.model), "--inputs", str(data)]
    command += ["--keep", "none", "-o", str(run), "--force", "--no-progress", "--no-cache"]
    if given.preprocess and data.is_dir():
        command += ["--preprocess", given.preprocess]
    command += ["--samples", str(samples)]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    most: dict[str, float] = {}
    watch = threading.Thread(target=watch_memory, args=(process.pid, most), daemon=True)
    watch.start()
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return _Cost(used.ru_utime + used.ru_stime, wall, most["VmHWM"] / 1e6)


if __name__ == "__main__":
    main()
