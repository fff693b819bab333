"""What simulating FP16 costs: beside FP32, with exact sums, and as TensorRT's kernels compute it.

One session of each model, final outputs only, one thread; they take turns, batch by batch, and the
fastest of several rounds counts. The FP32 session is ONNX Runtime's own, with all optimizations.

    python scripts/bench/bench_fp16.py [--nets W1 W2 W3 | model.onnx --inputs data.npz]
                                       [--samples 8]
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from common import add_networks, network, parser_of, session

from qdebug.backends.simulation import SimulationBackend
from qdebug.network.layers import find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.network.samples import open_samples
from qdebug.plan.lower import lower, required_opset
from qdebug.plan.plan import PrecisionPlan, bind_plan
from qdebug.types import Feeds, Fp16Kernels, Precision


def main() -> None:
    """Print seconds and ratios for each network."""
    parser = parser_of(__doc__, samples=8, rounds=5)
    add_networks(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for net in arguments.nets:
            path, data = network(net, arguments.inputs, arguments.samples, Path(folder))
            _bench(path, data, arguments.samples, arguments.rounds)


def _bench(path: Path, data: Path, count: int, rounds: int) -> None:
    plan = PrecisionPlan(Precision.FP16)
    model = prepare_model(read_model(path), required_opset(plan))
    half = lower(bind_plan(plan, model, find_layers(model.graph))).graph.proto
    samples = open_samples(str(data), model.graph.inputs, limit=count)
    feeds = [dict(samples.feeds(b.start, b.count)) for b in samples.batches()]
    ways: dict[str, Callable[[Feeds], Any]] = {
        "FP32": partial(session(model.graph.proto).run, None)
    }
    for kernels in Fp16Kernels:
        ways[f"FP16, {kernels}"] = SimulationBackend(1, kernels).open(half, []).run
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, run in ways.items():
            started = time.perf_counter()
            for one in feeds:
                run(one)
            best[name] = min(best[name], time.perf_counter() - started)
    print(f"{path.name}: {samples.count} samples")
    for name, seconds in best.items():
        print(f"  {name:16} {seconds:7.3f} s   {seconds / best['FP32']:5.2f} × FP32", flush=True)


if __name__ == "__main__":
    main()
