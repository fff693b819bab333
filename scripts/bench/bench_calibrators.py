"""What calibration costs: the histograms in GB/s, each method per tensor, and the whole pass.

The floor of the pass is the FP32 model alone with all float tensors as outputs; both sides run
with as many one-thread workers as there are cores, take turns, and the fastest round counts.

    python scripts/bench/bench_calibrators.py [--nets W1 W2 W3] [--samples 32]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from nets import NETS

from qdebug.calibrate import gather
from qdebug.calibrate.histogram import TensorHistogram, histogram_of
from qdebug.calibrate.methods import METHODS, parse_method
from qdebug.model.graph import Graph
from qdebug.types import Array

ROUNDS = 5
SIZES = (20_000, 200_000, 2_000_000)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", nargs="*", default=["W1", "W2"], help="of W1 W2 W3")
    parser.add_argument("--samples", type=int, default=32)
    arguments = parser.parse_args()
    _bench_histograms()
    _bench_methods()
    for net in arguments.nets:
        _bench_pass(net, arguments.samples)


def _data(size: int) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    gauss = rng.standard_normal(size, dtype=np.float32)
    images = (rng.integers(0, 256, size) / 255).astype(np.float32)
    return {"gauss": gauss, "relu": np.maximum(gauss, 0), "images": images}


def _best(action: Callable[[], Any], rounds: int = ROUNDS) -> float:
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - started)
    return best


@contextmanager
def _without_native() -> Iterator[None]:
    native, gather.native = gather.native, None
    try:
        yield
    finally:
        gather.native = native


def _bench_histograms() -> None:
    print("histogram_of, one core         compiled       numpy   merge     of another range")
    for size in SIZES:
        for name, values in _data(size).items():
            compiled = _best(partial(histogram_of, values), 20)
            with _without_native():
                plain = _best(partial(histogram_of, values), 3)
            histogram, other = histogram_of(values), histogram_of(values * np.float32(3.1))
            same = _best(partial(histogram.merge, histogram), 50) * 1e6
            wider = _best(partial(histogram.merge, other), 50) * 1e6
            rates = [values.nbytes / seconds / 1e9 for seconds in (compiled, plain)]
            print(
                f"  {size:8} {name:8} {rates[0]:12.2f} GB/s {rates[1]:6.2f} GB/s"
                f" {same:5.0f} µs {wider:6.0f} µs"
            )


def _bench_methods() -> None:
    print("amax of one tensor, ms")
    for name, values in _data(SIZES[-1]).items():
        histogram = histogram_of(values)
        times = {m: _best(partial(parse_method(m).amax, histogram), 20) * 1e3 for m in METHODS}
        listed = "  ".join(f"{method} {ms:.2f}" for method, ms in times.items())
        total = 300 * sum(times.values()) / 1e3
        size = histogram.table.nbytes / 1e3
        print(f"  {name:8} {listed}   300 tensors: {total:.2f} s, histogram {size:.0f} kB")


def _bench_pass(net: str, count: int) -> None:
    graph = Graph(NETS[net]())
    tensors = [t for t in graph.activations() if t in graph.producers]
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(_with_outputs(graph, tensors), options)
    value = graph.proto.graph.input[0]
    shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
    rng = np.random.default_rng(0)
    feeds = [{value.name: rng.standard_normal(shape, dtype=np.float32)} for _ in range(count)]
    workers = os.cpu_count() or 1

    def run(feed: dict[str, Array]) -> int:
        return len(session.run(None, feed))

    def gathered(feed: dict[str, Array]) -> dict[str, TensorHistogram]:
        found = zip(session.get_outputs(), session.run(None, feed), strict=True)
        return {o.name: histogram_of(v) for o, v in found if v.dtype == np.float32}

    totals: dict[str, TensorHistogram] = {}

    def gather_all(pool: ThreadPoolExecutor) -> None:
        totals.clear()
        for found in pool.map(gathered, feeds):
            for name, histogram in found.items():
                totals[name] = totals[name].merge(histogram) if name in totals else histogram

    def choose() -> None:
        for method in METHODS:
            for histogram in totals.values():
                parse_method(method).amax(histogram)

    with ThreadPoolExecutor(workers) as pool:
        floor = calibrated = float("inf")
        for _ in range(ROUNDS):
            floor = min(floor, _best(lambda: list(pool.map(run, feeds)), 1))
            calibrated = min(calibrated, _best(lambda: gather_all(pool), 1))
    print(
        f"{net}: {count} samples, {len(tensors)} tensors: FP32 {floor:.2f} s, with histograms"
        f" {calibrated:.2f} s, {calibrated / floor:.2f} ×; then"
        f" five methods {_best(choose, 2):.2f} s"
    )


def _with_outputs(graph: Graph, tensors: list[str]) -> bytes:
    proto = onnx.ModelProto()
    proto.CopyFrom(graph.proto)
    known = {output.name for output in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=t) for t in tensors if t not in known)
    return proto.SerializeToString()


if __name__ == "__main__":
    main()
