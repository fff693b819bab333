"""Whether an engine's copies overlap with the run file's writes, and what executing costs.

    python scripts/bench/bench_engine.py MODEL.onnx INPUTS.npz [--samples 32] [--directory DIR]

Needs a GPU. Every tensor of the model is an output of the engine. Best of three rounds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from common import best, parser_of

from qdebug.backends.stream import map_in_order
from qdebug.backends.tensorrt.backend import TensorRTBackend
from qdebug.backends.tensorrt.factory import EngineFactory
from qdebug.backends.tensorrt.library import load_library
from qdebug.execute.engine.build import fitted
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.network.samples import open_samples
from qdebug.store.schema import Keep
from qdebug.store.writer import RunWriter
from qdebug.types import Tensors


def main() -> None:
    """Print seconds of running alone, writing alone, and both: in turn and side by side."""
    parser = parser_of(__doc__, samples=32, rounds=3)
    parser.add_argument("model")
    parser.add_argument("inputs")
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
            path = Path(folder) / "run.h5"
            with RunWriter(
                path, overwrite=False, keep=Keep("all"), expected_rows=len(feeds)
            ) as writer:
                for row, tensors in enumerate(results):
                    writer.put_rows("candidate", row, row, tensors)
                writer.finish("{}")

    def run() -> None:
        for one in feeds:
            session.run(one)

    print(f"{len(wanted)} tensors, {size / 1e6:.1f} MB per sample, {len(feeds)} samples")
    ways: dict[str, Callable[[], object]] = {
        "run alone": run,
        "run alone, 2 in flight": lambda: list_of(session.run, feeds),
        "write alone": lambda: write(kept),
        "run, then write": lambda: write(map(session.run, feeds)),
        "run while writing": lambda: write(map_in_order(session.run, feeds, 2)),
    }
    for name, way in ways.items():
        print(f"{name:22} {best(way, args.rounds):.3f} s")
    session.close()


def list_of(work: Callable[..., Tensors], items: Iterable[object]) -> None:
    """Do all, in two threads, and forget the results."""
    for _ in map_in_order(work, items, 2):
        pass


if __name__ == "__main__":
    main()
