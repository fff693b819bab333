"""What `--cluster local:N` gains: each command on N cores with N workers of one thread each, beside
one process on the same cores.

Each row is a fresh process that may use N cores. The workers are there before the clock starts;
how long their start takes is a column of its own. The seconds of processors (of one process; of the
command, and of the longest worker) say what the distribution costs where other programs use the
machine too. `gain` is over one worker, `cost` what a worker needs more of the processor than one
process, in percent: it means something in the rows of one worker alone.

The plan is given, so compare does not calibrate, and it measures no effects; sweep has eight plans,
by four methods, and executes with ONNX Runtime; bisect has 48 evaluations; repair has few samples,
one round, and pins nothing, which is bisect's work.

    python scripts/bench/bench_cluster.py [--workers 1 2 4] [--net W2] [--samples 256]
        [--commands compare calibrate bisect sweep repair]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

from common import network, parser_of, seconds_of

import qdebug
from qdebug.pipeline.cluster.dispatch import Cluster
from qdebug.pipeline.cluster.machines import open_cluster
from qdebug.pipeline.cluster.worker import warm

PLAIN, SPREAD = "one process", "workers"
CPU_PLAIN, CPU_CLIENT, CPU_WORKER = "CPU s: one", "client", "a worker"
SHOWN = PLAIN, SPREAD, CPU_PLAIN, CPU_CLIENT, CPU_WORKER
HEAD = (
    f"{'command':10}{'workers':>7}{'start s':>8}"
    + "".join(f"{key:>12}" for key in SHOWN)
    + f"{'gain':>8}{'cost':>7}"
)
COMMANDS = "compare", "calibrate", "bisect", "sweep", "repair"
_FEW = 48
METHODS = "entropy", "minmax", "mse", "percentile"


def main() -> None:
    """Print a table, or the figures of one row (in a child process)."""
    parser = parser_of(__doc__, samples=256, rounds=2)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--net", default="W2", help="see --nets of bench_compare.py")
    parser.add_argument("--commands", nargs="+", default=list(COMMANDS))
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        for figures in _row(arguments):
            print(json.dumps(figures), flush=True)
        return
    cores = len(os.sched_getaffinity(0))
    print(f"{arguments.net}, {arguments.samples} samples, {cores} cores")
    print(HEAD)
    with tempfile.TemporaryDirectory() as folder:
        network(arguments.net, None, arguments.samples, Path(folder))
        first: dict[str, float] = {}
        for count in (n for n in arguments.workers if n <= cores):
            command = [sys.executable, __file__, *sys.argv[1:], "--row", str(count)]
            with subprocess.Popen(
                [*command, "--folder", folder], stdout=subprocess.PIPE, text=True
            ) as child:
                assert child.stdout
                for line in child.stdout:
                    _show(json.loads(line), count, first)
            if child.returncode:
                sys.exit(child.returncode)


def _show(row: dict[str, Any], count: int, first: dict[str, float]) -> None:
    name = row["command"]
    gain = first.setdefault(name, row[SPREAD]) / row[SPREAD]
    cost = (row[CPU_CLIENT] + row[CPU_WORKER]) / row[CPU_PLAIN] - 1
    shown = "".join(f"{row[key]:12.1f}" for key in SHOWN)
    start = f"{name:10}{count:7}{row['start']:8.1f}"
    print(f"{start}{shown}{gain:6.2f} x{100 * cost:+6.0f}%", flush=True)


def _row(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Seconds by way of each command, on so many cores."""
    count = arguments.row
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
    path, data = network(arguments.net, None, arguments.samples, arguments.folder)
    plans = [_plan(path, data, *way) for way in product(METHODS, ("per-channel", "per-tensor"))]
    opened: list[Cluster] = []
    with ExitStack() as stack:

        def start() -> None:
            found = open_cluster(stack, f"local:{count}", None, limit_s=600.0)
            assert found is not None
            found.client.wait_for_workers(count)
            found.client.run(warm)
            opened.append(found)

        started = seconds_of(start)
        runs: dict[str, Callable[..., Any]] = {
            "compare": lambda **how: qdebug.compare(
                path, inputs=data, plan=plans[0], effect="none", **how
            ),
            "calibrate": lambda **how: qdebug.calibrate(path, calib_data=data, **how),
            "bisect": lambda **how: qdebug.bisect(
                path, inputs=data, target="output.sqnr_db>=30", max_evaluations=48, **how
            ),
            "sweep": lambda **how: qdebug.sweep(
                path, inputs=data, plan=plans, backend="onnxruntime", **how
            ),
            "repair": lambda **how: qdebug.repair(
                path, calib_data=data, samples=_FEW, pin=False, **how
            ),
        }
        for name in arguments.commands:
            run = runs[name]
            rounds = 1 if name == "repair" else arguments.rounds
            yield {"command": name, "start": started, **_measured(run, opened[0], rounds)}


def _plan(model: Path, data: Path, method: str, weights: str) -> Path:
    plan = model.parent / f"{method}-{weights}.yaml"
    if not plan.exists():
        how = {"method": method, "weights": weights, "effect": "none"}
        qdebug.compare(model, inputs=data, samples=8, save_plan=plan, **how)
    return plan


def _measured(run: Callable[..., Any], cluster: Cluster, rounds: int) -> dict[str, float]:
    """Seconds of both ways, and of the processor: these hardly depend on what else runs. The
    longest of all workers, since the others wait for it."""
    address = str(cluster.client.scheduler.address)
    best: dict[str, float] = {}
    for _ in range(rounds):
        began = time.process_time()
        wall = seconds_of(lambda: run(cache=False))
        found = {PLAIN: wall, CPU_PLAIN: time.process_time() - began}
        began, before = time.process_time(), cluster.client.run(time.process_time)
        found[SPREAD] = seconds_of(lambda: run(cache=False, cluster=address))
        found[CPU_CLIENT] = time.process_time() - began
        after = cluster.client.run(time.process_time)
        found[CPU_WORKER] = max(after[worker] - before.get(worker, 0.0) for worker in after)
        best = {key: min(value, best.get(key, value)) for key, value in found.items()}
    return best


if __name__ == "__main__":
    main()
