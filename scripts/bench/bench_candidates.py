"""What one candidate of a precision search costs beside a plain FP32 run of the same samples.

The floor is one session of the FP32 model, final outputs only, all optimizations, over all
samples, its creation left out. A candidate pays for everything: it is assembled, opened, run, and
its outputs are measured; a figure is the mean of several that have other layers raised. One thread
per session on both sides; they take turns in one process, and the fastest round of each counts.
With W workers, W candidates run at once, and the floor is W sessions at once.

    python scripts/bench/bench_candidates.py [--nets W1 W2 W3 | model.onnx --inputs data.npz]
                                             [--samples 64] [--workers 1 2]
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from common import add_networks, network, parser_of, session

from qdebug.backends.options import DEFAULT_SESSIONS
from qdebug.backends.sizing import Parallelism
from qdebug.config.compare import CompareSettings
from qdebug.decide.bisect.candidates import CandidateRunner, RunnerOptions
from qdebug.execute.context import simulation_context
from qdebug.execute.model_pair import build_pair, load_model, plan_from
from qdebug.network.samples import open_samples
from qdebug.network.samples.subset import whole
from qdebug.plan.plan import bind_plan
from qdebug.types import Precision, ignore_progress

TURNS = 4


def main() -> None:
    """Print a table of ratios for each network."""
    parser = parser_of(__doc__, samples=64, rounds=3)
    add_networks(parser)
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for net in arguments.nets:
            for workers in arguments.workers:
                path, data = network(net, arguments.inputs, arguments.samples, Path(folder))
                _bench(_Case(path, data, arguments.samples, workers), arguments.rounds)


def _bench(case: _Case, rounds: int) -> None:
    ways: dict[str, Callable[[], float]] = {
        "FP32": case.floor,
        "all INT8": lambda: case.candidates(0, Precision.FP32),
        "a layer in 20 in FP32": lambda: case.candidates(1 / 20, Precision.FP32),
        "a layer in 10 in FP32": lambda: case.candidates(1 / 10, Precision.FP32),
        "half of the layers in FP32": lambda: case.candidates(1 / 2, Precision.FP32),
        "a layer in 10 in FP16": lambda: case.candidates(1 / 10, Precision.FP16),
        "a layer in 10 in FP32, literally": lambda: case.candidates(1 / 10, Precision.FP32, True),
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            best[name] = min(best[name], way())
    case.close()
    print(f"{case.name}: {case.count} samples, {case.workers} at once. {case.reason}")
    for name, seconds in best.items():
        print(f"  {name:34} {seconds:7.3f} s   {seconds / best['FP32']:5.2f} × FP32", flush=True)


class _Case:
    """A network with samples, and runners of its candidates."""

    def __init__(self, path: Path, data: Path, count: int, workers: int) -> None:
        self.name = path.stem
        settings = CompareSettings(str(path), str(data), samples=count, precision="int8")
        plan = plan_from(settings.quantization)
        model = load_model(str(path), plan, (), DEFAULT_SESSIONS)
        samples = open_samples(str(data), model.graph.inputs, limit=count)
        context = simulation_context(Parallelism(workers, 1), ignore_progress, DEFAULT_SESSIONS)
        pair = build_pair(settings.quantization, context, plan, model, samples).pair
        assert pair.plan is not None
        bound = bind_plan(pair.plan, model, pair.layers)
        self.names = [x.name for x in pair.layers if x.quantizable]
        self.runners = [
            CandidateRunner(
                context, model, bound, whole(samples), options=RunnerOptions(literal=literal)
            )
            for literal in (None, True)
        ]
        for runner in self.runners:
            runner._cache = None  # every candidate from the inputs on: the rounds are all alike
        self.reason = self.runners[0].reason
        self.workers = workers
        subset = self.runners[0].subset
        self.count = subset.count
        self.feeds = [dict(samples.feeds(b.start, b.count)) for b in subset.batches]
        self.sessions = [session(model.graph.proto) for _ in range(workers)]

    def floor(self) -> float:
        def one(alone: Any) -> None:
            for feeds in self.feeds:
                alone.run(None, feeds)

        started = time.perf_counter()
        with ThreadPoolExecutor(self.workers) as pool:
            list(pool.map(one, self.sessions))
        return time.perf_counter() - started

    def candidates(self, share: float, precision: Precision, literally: bool = False) -> float:
        """The mean time of `workers` candidates at once, `share` of their layers raised."""
        rng = np.random.default_rng(0)
        count = max(1, round(share * len(self.names))) if share else 0
        sets = [
            {str(name): precision for name in rng.permutation(self.names)[:count]}
            for _ in range(TURNS * self.workers)
        ]
        started = time.perf_counter()
        results = self.runners[literally].evaluate_many(sets)
        seconds = (time.perf_counter() - started) / TURNS
        for result in results:
            assert not result.failure, result.failure
        return seconds

    def close(self) -> None:
        for runner in self.runners:
            runner.close()


if __name__ == "__main__":
    main()
