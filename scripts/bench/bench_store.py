"""Write and read rates of the run file on real activations: chunk layouts, dtypes, the GIL.

    python scripts/bench/bench_store.py MODEL.onnx INPUTS.npz [--samples 4] [--directory DIR]

Every tensor of the model is captured by ONNX Runtime. Rates are of uncompressed bytes, the best
of five; each includes creating, closing and syncing the file.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import onnx
from common import best, parser_of, session

from qdebug.store import rows
from qdebug.store.reader import RunReader
from qdebug.store.schema import Keep
from qdebug.store.writer import RunWriter

Row = dict[str, np.ndarray]


def capture(model_path: Path, inputs_path: Path, samples: int) -> list[Row]:
    """Every node output of the model, for the first samples of its only input."""
    model = onnx.load(model_path)
    names = [name for node in model.graph.node for name in node.output if name]
    alone = session(model, names)
    names = [output.name for output in alone.get_outputs()]
    with np.load(inputs_path) as data:
        feeds = {item.name: data[item.name] for item in alone.get_inputs()}
    return [
        dict(zip(names, alone.run(None, {k: v[i : i + 1] for k, v in feeds.items()}), strict=True))
        for i in range(samples)
    ]


def write(path: Path, captured: list[Row], dtype: str) -> None:
    """One run file of the reference role."""
    with RunWriter(
        path,
        overwrite=True,
        keep=Keep("all"),
        dtype=dtype,  # type: ignore[arg-type]
        expected_rows=len(captured),
    ) as writer:
        for i, tensors in enumerate(captured):
            writer.put_rows("reference", i, i, tensors)
        writer.finish("{}")


def read(path: Path, captured: list[Row]) -> None:
    """Every row of the run file."""
    with RunReader(path) as run:
        names = run.tensors("reference")
        for i in range(len(captured)):
            run.read_rows("reference", i, names)


def bench_dtypes(path: Path, captured: list[Row], repeats: int) -> None:
    size = sum(array.nbytes for tensors in captured for array in tensors.values())
    for dtype in ("float32", "float16"):
        seconds = best(partial(write, path, captured, dtype), repeats)
        back = best(partial(read, path, captured), repeats)
        print(f"{dtype} write {size / seconds / 1e9:5.2f} GB/s  read {size / back / 1e9:5.2f} GB/s")


def bench_chunks(path: Path, captured: list[Row], repeats: int) -> None:
    size = sum(array.nbytes for tensors in captured for array in tensors.values())
    for limit in (64 << 10, 256 << 10, 1 << 20, 4 << 20, 1 << 30):
        rows.MAX_CHUNK_BYTES = limit
        seconds = best(partial(write, path, captured, "float32"), repeats)
        print(
            f"chunks up to {limit >> 10:8} KiB: write {size / seconds / 1e9:.2f} GB/s,"
            f" file {path.stat().st_size / size:.2f} of the data"
        )


def bench_threads(path: Path, repeats: int) -> None:
    """How far another thread gets while this one writes 25 MB rows: 1.00 is undisturbed."""
    row = np.random.default_rng(0).standard_normal((1, 6, 1024, 1024)).astype(np.float32)
    with h5py.File(path, "w", rdcc_nbytes=0) as file:
        options = {"shape": (4, *row.shape), "dtype": "f4", "chunks": (1, *row.shape)}
        raw = file.create_dataset("raw", **options)
        work: dict[str, Callable[[int], object]] = {
            "idle": lambda _: time.sleep(0.01),
            "pure Python loop (holds the lock)": lambda _: sum(range(300_000)),
            "write_direct_chunk": lambda i: raw.id.write_direct_chunk((i, 0, 0, 0, 0), row),
            "read": lambda i: raw[i],
        }
        rates = {name: max(_ticks(action) for _ in range(repeats)) for name, action in work.items()}
    for name, rate in rates.items():
        print(f"other thread during {name:34}: {rate / rates['idle']:.2f} of its idle rate")


def _ticks(action: Callable[[int], object]) -> float:
    """Times per second that a thread which sleeps 0.2 ms at a time gets its turn."""
    count, stop = 0, threading.Event()

    def tick() -> None:
        nonlocal count
        while not stop.is_set():
            time.sleep(0.0002)
            count += 1

    thread = threading.Thread(target=tick)
    thread.start()
    start, turn = time.perf_counter(), 0
    while time.perf_counter() - start < 0.4:
        action(turn % 4)
        turn += 1
    rate = count / (time.perf_counter() - start)
    stop.set()
    thread.join()
    return rate


def main() -> int:
    parser = parser_of(__doc__, samples=4, rounds=5)
    parser.add_argument("model", type=Path)
    parser.add_argument("inputs", type=Path)
    parser.add_argument("--directory", type=Path, help="on the disk to measure")
    options = parser.parse_args()
    captured = capture(options.model, options.inputs, options.samples)
    arrays = [array for tensors in captured for array in tensors.values()]
    zeros = sum(int((array == 0).sum()) for array in arrays) / sum(array.size for array in arrays)
    size = sum(array.nbytes for array in arrays)
    print(
        f"{len(captured[0])} tensors, {size / len(captured) / 1e6:.0f} MB per sample,"
        f" {zeros:.0%} zeros; {os.cpu_count()} CPUs"
    )
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        path = Path(folder) / "run.h5"
        bench_dtypes(path, captured, options.rounds)
        bench_chunks(path, captured, options.rounds)
        bench_threads(path.with_name("threads.h5"), options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
