"""What simulating FP16 costs: beside FP32, with exact sums, and as TensorRT's kernels compute it.

One session of each model, final outputs only, one thread; they take turns, batch by batch, and the
fastest of several rounds counts. The FP32 session is ONNX Runtime's own, with all optimizations.

    python scripts/bench/bench_fp16.py [--nets W1 W2 W3 | model.onnx --inputs data.npz]
                                       [--samples 8]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
from bench_candidates import make_samples
from nets import NETS

from qdebug.model.layers import find_layers
from qdebug.model.load import read_model
from qdebug.model.prepare import prepare_model
from qdebug.model.samples import open_samples
from qdebug.plan.lower import lower, required_opset
from qdebug.plan.plan import PrecisionPlan, bind_plan
from qdebug.run.simulation import SimulationBackend
from qdebug.types import Feeds, Fp16Kernels, Precision

ROUNDS = 5


def main() -> None:
    """Print seconds and ratios for each network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", nargs="+", default=list(NETS), help="W1 W2 W3, or ONNX files")
    parser.add_argument("--inputs", help="samples for an ONNX file given to --nets")
    parser.add_argument("--samples", type=int, default=8)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for net in arguments.nets:
            _bench(net, arguments.inputs, arguments.samples, Path(folder))


def _bench(net: str, inputs: str | None, count: int, folder: Path) -> None:
    path = folder / f"{net}.onnx" if net in NETS else Path(net)
    data = Path(inputs) if inputs else folder / f"{net}.npz"
    if net in NETS:
        onnx.save(NETS[net](), path)
    if not inputs:
        make_samples(path, data, count)
    plan = PrecisionPlan(Precision.FP16)
    model = prepare_model(read_model(path), required_opset(plan))
    half = lower(bind_plan(plan, model, find_layers(model.graph))).graph.proto
    samples = open_samples(str(data), model.graph.inputs, limit=count)
    feeds = [dict(samples.feeds(b.start, b.count)) for b in samples.batches()]
    ways: dict[str, Callable[[Feeds], Any]] = {"FP32": _plain(model.graph.proto)}
    for kernels in Fp16Kernels:
        ways[f"FP16, {kernels}"] = SimulationBackend(1, kernels).open(half, []).run
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, run in ways.items():
            started = time.perf_counter()
            for one in feeds:
                run(one)
            best[name] = min(best[name], time.perf_counter() - started)
    print(f"{path.name}: {samples.count} samples")
    for name, seconds in best.items():
        print(f"  {name:16} {seconds:7.3f} s   {seconds / best['FP32']:5.2f} × FP32", flush=True)


def _plain(proto: onnx.ModelProto) -> Callable[[Feeds], Any]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda feeds: session.run(None, feeds)


if __name__ == "__main__":
    main()
