"""What `qdebug compare` costs on a folder of pictures beside the same samples in an `.npz`.

Both sides run in fresh processes, in turn: the same model, the same arrays, of which one side
decodes its own from JPEGs of 640x480. Printed are wall time, processor time and peak memory of
each, and their ratios; memory also for a quarter of the pictures, which shows whether it grows.

    python scripts/bench/bench_pictures.py MODEL.onnx [--pictures 2000] [--rounds 2]
        [--preprocess FILE.yaml]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from common import parser_of
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
        best: dict[str, tuple[float, float, float]] = {}
        for _ in range(given.rounds):
            for kind, data in (("npz", arrays), ("pictures", pictures)):
                took = _took(given, data, folder)
                best[kind] = min(best.get(kind, took), took)
        quarter = {"a quarter": _took(given, pictures, folder, given.pictures // 4)}
        for kind, (wall, cpu, memory) in (best | quarter).items():
            print(f"{kind:10} {wall:7.1f} s wall {cpu:7.1f} s CPU {memory:7.0f} MB")
        wall, cpu, memory = (b / a for a, b in zip(best["npz"], best["pictures"], strict=True))
        print(f"pictures / npz: wall {wall:.2f}, CPU {cpu:.2f}, memory {memory:.2f}")


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


def _took(
    given: argparse.Namespace, data: Path, folder: Path, samples: int | None = None
) -> tuple[float, float, float]:
    """Seconds on the wall, seconds of processors, and peak megabytes of a comparison."""
    run = folder / "run.h5"
    command = [sys.executable, "-m", "qdebug", "compare", str(given.model), "--inputs", str(data)]
    command += ["--keep", "none", "-o", str(run), "--force", "--no-progress", "--no-cache"]
    if given.preprocess and data.is_dir():
        command += ["--preprocess", given.preprocess]
    if samples:
        command += ["--samples", str(samples)]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / (1024 if _IS_LINUX else 1 << 20)


_IS_LINUX = sys.platform == "linux"
"""Where ru_maxrss is in kilobytes."""


if __name__ == "__main__":
    main()
