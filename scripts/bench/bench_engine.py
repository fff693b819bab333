"""Whether an engine's copies overlap with the run file's writes, and what executing costs.

    python scripts/bench/bench_engine.py MODEL.onnx INPUTS.npz [--samples 32] [--directory DIR]

Needs a GPU. Every tensor of the model is an output of the engine. Best of three rounds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from qdebug.model.load import read_model
from qdebug.model.prepare import prepare_model
from qdebug.model.samples import open_samples
from qdebug.pipeline.engine.build import fitted
from qdebug.run.stream import map_in_order
from qdebug.run.tensorrt.backend import TensorRTBackend
from qdebug.run.tensorrt.factory import EngineFactory
from qdebug.run.tensorrt.library import load_library
from qdebug.store.schema import Keep
from qdebug.store.writer import RunWriter
from qdebug.types import Tensors

ROUNDS = 3


def best(work: Callable[[], None]) -> float:
    """Seconds of the fastest of several rounds."""
    durations = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        durations.append(time.perf_counter() - started)
    return min(durations)


def main() -> None:
    """Print seconds of running alone, writing alone, and both: in turn and side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("inputs")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--directory", type=Path)
    args = parser.parse_args()
    graph = prepare_model(read_model(args.model)).graph
    samples = open_samples(args.inputs, graph.inputs, limit=args.samples, batch_size=1)
    batches = list(samples.batches())
    runtime = fitted(TensorRTBackend(EngineFactory(load_library("tensorrt-rtx"))), graph, samples)
    wanted = [t for t in graph.activations() if t in graph.producers]
    session = runtime.open(graph.proto, wanted)
    feeds = [samples.feeds(batch.start, batch.count) for batch in batches]
    kept = [dict(session.run(one)) for one in feeds]
    size = sum(a.nbytes for a in kept[0].values())

    def write(results: Iterable[Tensors]) -> None:
        with tempfile.TemporaryDirectory(dir=args.directory) as folder:
            options = {"keep": Keep("all"), "filter": "raw", "expected_rows": len(feeds)}
            with RunWriter(Path(folder) / "run.h5", overwrite=False, **options) as writer:
                for row, tensors in enumerate(results):
                    writer.put_rows("candidate", row, row, tensors)
                writer.finish("{}")

    def run() -> None:
        for one in feeds:
            session.run(one)

    print(f"{len(wanted)} tensors, {size / 1e6:.1f} MB per sample, {len(feeds)} samples")
    print(f"run alone              {best(run):.3f} s")
    print(f"run alone, 2 in flight {best(lambda: list_of(session.run, feeds)):.3f} s")
    print(f"write alone            {best(lambda: write(kept)):.3f} s")
    print(f"run, then write        {best(lambda: write(map(session.run, feeds))):.3f} s")
    print(
        f"run while writing      {best(lambda: write(map_in_order(session.run, feeds, 2))):.3f} s"
    )
    session.close()


def list_of(work: Callable[..., Tensors], items: Iterable[object]) -> None:
    """Do all, in two threads, and forget the results."""
    for _ in map_in_order(work, items, 2):
        pass


if __name__ == "__main__":
    main()
