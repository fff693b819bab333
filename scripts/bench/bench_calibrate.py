"""What all calibrators from one pass cost, beside the floor and beside ONNX Runtime's own.

Each figure is that of a fresh process: its wall time without imports and without reading and
preparing the model, and its peak memory with them. All take turns; the fastest round counts.

- floor: ONNX Runtime running the FP32 model with all tensors as outputs, one thread per sample and
  as many samples in flight as there are cores, nothing done with the outputs;
- qdebug: the pass over all activations that INT8 layers read, then all methods;
- onnxruntime: its Entropy calibrator with 2048 bins.

    python scripts/bench/bench_calibrate.py [--nets W1 W2 W3] [--samples 16 256] [--peer]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from common import add_networks, network, parser_of, peak_megabytes, seconds_of

from qdebug.backends.options import DEFAULT_SESSIONS
from qdebug.backends.simulation import SimulationBackend
from qdebug.backends.sizing import parallelism
from qdebug.backends.stream import map_in_order
from qdebug.calibrators.registry import METHODS, parse_method
from qdebug.execute.context import simulation_context
from qdebug.execute.gather import calibrated, gather_ranges
from qdebug.network.layers import find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import Model, prepare_model
from qdebug.network.samples import open_samples
from qdebug.network.samples.subset import whole
from qdebug.plan.plan import PrecisionPlan, bind_plan
from qdebug.types import Precision, ignore_progress


def main() -> None:
    """Print a table, or run one job (in a child process)."""
    parser = parser_of(__doc__, rounds=3)
    add_networks(parser)
    parser.add_argument("--samples", nargs="+", type=int, default=[16, 256])
    parser.add_argument("--peer", action="store_true", help="also ONNX Runtime's calibrator")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(_child(*json.loads(arguments.child))))
        return
    jobs = ["floor", "qdebug", *(["onnxruntime"] if arguments.peer else [])]
    with tempfile.TemporaryDirectory() as folder:
        for net in arguments.nets:
            model, data = network(net, arguments.inputs, max(arguments.samples), Path(folder))
            for count in arguments.samples:
                rounds = [
                    {job: _measured(job, model, data, count) for job in jobs}
                    for _ in range(arguments.rounds)
                ]
                done = {job: np.min([one[job] for one in rounds], axis=0) for job in jobs}
                for job, (seconds, megabytes) in done.items():
                    ratio = seconds / done["floor"][0]
                    print(
                        f"{model.stem} {count:4} samples  {job:12} {seconds:7.2f} s "
                        f"{ratio:6.2f} × floor  {megabytes:6.0f} MB"
                    )


def _measured(job: str, model: Path, data: Path, count: int) -> tuple[float, int]:
    child = json.dumps([job, str(model), str(data), count])
    command = [sys.executable, __file__, "--child", child]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        print(
            f"{model.stem} {count} samples: {job} failed: {ended.stderr.strip().splitlines()[-1:]}"
        )
        return float("nan"), 0
    seconds, megabytes = json.loads(ended.stdout.strip().splitlines()[-1])
    return seconds, megabytes


def _child(job: str, model: str, data: str, count: int) -> tuple[float, int]:
    work = {"floor": _floor, "qdebug": _qdebug, "onnxruntime": _peer}[job]
    prepared = prepare_model(read_model(model))
    return seconds_of(lambda: work(prepared, model, data, count)), peak_megabytes()


def _floor(prepared: Model, model: str, data: str, count: int) -> None:
    graph = prepared.graph
    samples = open_samples(data, graph.inputs, limit=count)
    session = SimulationBackend(1).open(graph.proto, list(graph.activations()))
    for _ in map_in_order(
        lambda b: len(session.run(samples.feeds(b.start, b.count))),
        samples.batches(),
        parallelism().workers,
    ):
        pass


def _qdebug(prepared: Model, model: str, data: str, count: int) -> None:
    graph = prepared.graph
    samples = open_samples(data, graph.inputs, limit=count)
    plan = bind_plan(PrecisionPlan(Precision.INT8), prepared, find_layers(graph))
    parallel = parallelism()
    context = simulation_context(parallel, ignore_progress, DEFAULT_SESSIONS)
    needed = plan.needed_ranges()
    gathered = gather_ranges(context, graph, whole(samples), cached=False, tensors=needed)
    for method in METHODS:
        calibrated(gathered.histograms, needed, parse_method(method))


def _peer(prepared: Model, model: str, data: str, count: int) -> None:
    from onnxruntime.quantization.calibrate import (
        CalibrationDataReader,
        CalibrationMethod,
        create_calibrator,
    )

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            name = prepared.graph.inputs[0].name
            values = np.load(data)[name]
            self._feeds: Iterator[dict[str, np.ndarray]] = iter(
                {name: values[i : i + 1]} for i in range(count)
            )

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self._feeds, None)

    with tempfile.TemporaryDirectory() as folder:
        calibrator = create_calibrator(
            Path(model),
            op_types_to_calibrate=["Conv", "Gemm", "MatMul"],
            augmented_model_path=str(Path(folder, "augmented.onnx")),
            calibrate_method=CalibrationMethod.Entropy,
            extra_options={"num_bins": 2048},
        )
        calibrator.collect_data(Reader())
        calibrator.compute_data()


if __name__ == "__main__":
    main()
