"""What `--cluster local:N` gains: whole commands, from the start of Python to their end.

One process on one core, then N workers of one thread each on N cores, which the command shares
with them. `gain` is the time of one process over that of the workers. The seconds of processors
are those of the command and of all that it started; `cost` is how many more of them workers need
than one process: with one worker that is the overhead, start-up included.

A row is printed as soon as it is measured; nothing is taken from the cache. Cores are different
ones before they are threads of one. On 4 or more, one process and one worker run side by side.
compare calibrates on its samples and measures what layers cost: with 256 samples the default
network takes one process 90 s or so. calibrate has twice as many samples; bisect as many, a target
that takes 21 evaluations, and 48 at most; sweep a quarter, eight plans, by four methods, executed
with ONNX Runtime (`--backend tensorrt-rtx` builds them for a GPU that is not there, and so times
none); repair an eighth, and it pins nothing, which is bisect's work.

    python scripts/bench/bench_cluster.py [--workers 1 2 4] [--net W1] [--samples 256] [--rounds 1]
        [--commands compare calibrate bisect] [--backend onnxruntime]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import product, zip_longest
from pathlib import Path

from common import network, parser_of

import qdebug

COMMANDS = "compare", "calibrate", "bisect", "sweep", "repair"
BUILT_FOR = {"onnxruntime": (), "tensorrt-rtx": ("--compute-capability", "8.9")}
"""Backends of sweep, and what more they are given."""
METHODS = "entropy", "minmax", "mse", "percentile"
_ENOUGH = 4
"""Cores, so that one command does not disturb another."""
HEAD = f"{'command':10}{'way':14}{'cores':>6}{'wall s':>9}{'CPU s':>9}{'gain':>9}{'cost':>7}"
_MOST_EVALUATIONS = 48
_OF_CALIBRATE, _OF_SWEEP, _OF_REPAIR = 2, 1 / 4, 1 / 8
"""Samples of other commands, for each of compare's."""


def main() -> None:
    """Print a table."""
    parser = parser_of(__doc__, samples=256, rounds=1)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--net", default="W1", help="see --nets of bench_compare.py")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS[:3]))
    parser.add_argument("--backend", default="onnxruntime", choices=BUILT_FOR, help="of sweep")
    arguments = parser.parse_args()
    cores = _cores()
    print(f"{arguments.net}, {arguments.samples} samples, {len(cores)} cores")
    print(HEAD, flush=True)
    ways = [("one process", 1, [])]
    counts = [n for n in arguments.workers if n <= len(cores)]
    ways += [(f"local:{n}", n, ["--cluster", f"local:{n}"]) for n in counts]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        most = arguments.samples * _OF_CALIBRATE
        model, data = network(arguments.net, None, most, folder)
        commands = _commands(model, data, arguments.samples, arguments.backend)
        for command in arguments.commands:
            words = commands[command]()
            runs = [_Run([*words, *more], cores[:count], folder) for _, count, more in ways]
            if len(cores) >= _ENOUGH and len(ways) > 1 and ways[1][1] == 1:
                runs[1].cores = cores[1:2]
                runs[1].begin()
            for (way, count, _), run in zip(ways, runs, strict=True):
                seconds, work = min(run.measured() for _ in range(arguments.rounds))
                if run is runs[0]:
                    first = seconds, work
                gain, cost = first[0] / seconds, work / first[1] - 1
                shown = f"{command:10}{way:14}{count:6}{seconds:9.1f}{work:9.1f}"
                print(f"{shown}{gain:7.2f} x{100 * cost:+6.0f}%", flush=True)


def _commands(
    model: Path, data: Path, samples: int, backend: str
) -> dict[str, Callable[[], list[str]]]:
    """The words of each command."""
    few = max(4, int(samples * _OF_SWEEP))
    inputs, calibration = ["--inputs", str(data)], ["--calib-data", str(data)]
    usual = ["--no-progress"]

    def taking(number: int) -> list[str]:
        return ["--samples", str(max(16, number)), *usual]

    def of_search() -> list[str]:
        words = ["bisect", str(model), *inputs, "--target", "output.sqnr_db>=40"]
        most = ["--max-evaluations", str(_MOST_EVALUATIONS), "--no-cache"]
        return [*words, *most, *taking(samples)]

    def of_sweep() -> list[str]:
        plans = [_plan(model, data, *way) for way in product(METHODS, _WEIGHTS)]
        given = [word for plan in plans for word in ("--plan", str(plan))]
        words = ["sweep", str(model), *inputs, *given, "--no-cache"]
        return [*words, "--backend", backend, *BUILT_FOR[backend], *taking(few)]

    compare = ["compare", str(model), *inputs, "--no-cache"]
    calibrate = ["calibrate", str(model), *calibration, "--no-cache"]
    repair = ["repair", str(model), *calibration, "--no-pin", "--no-cache"]
    return {
        "compare": lambda: [*compare, *taking(samples)],
        "calibrate": lambda: [*calibrate, *taking(samples * _OF_CALIBRATE)],
        "bisect": of_search,
        "sweep": of_sweep,
        "repair": lambda: [*repair, *taking(int(samples * _OF_REPAIR))],
    }


_WEIGHTS = "per-channel", "per-tensor"


def _plan(model: Path, data: Path, method: str, weights: str) -> Path:
    plan = model.parent / f"{method}-{weights}.yaml"
    if not plan.exists():
        how = {"method": method, "weights": weights, "effect": "none"}
        qdebug.compare(model, inputs=data, samples=8, save_plan=plan, **how)
    return plan


def _cores() -> list[int]:
    """Those that may be used: one thread of each core first, where the system says which they
    are."""
    each: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        core = topology.read_text() if topology.exists() else str(cpu)
        each.setdefault(core, []).append(cpu)
    return [cpu for threads in zip_longest(*each.values()) for cpu in threads if cpu is not None]


class _Run:
    """A whole command on some cores."""

    def __init__(self, words: list[str], cores: list[int], folder: Path) -> None:
        self.cores = cores
        self._folder = Path(tempfile.mkdtemp(dir=folder))
        out = ["-o", str(self._folder / "out"), "--force"] if words[0] != "calibrate" else []
        self._command = [sys.executable, "-m", "qdebug", *words, *out]
        self._future: Future[tuple[float, float]] | None = None

    def begin(self) -> None:
        """Run it beside what comes next."""
        self._future = ThreadPoolExecutor(1).submit(self._measured)

    def measured(self) -> tuple[float, float]:
        """Seconds: of the clock, and of processors.

        Raises:
            SystemExit: it failed.
        """
        begun, self._future = self._future, None
        return begun.result() if begun else self._measured()

    def _measured(self) -> tuple[float, float]:
        log = self._folder / "log.txt"
        mine = os.sched_getaffinity(0)
        with log.open("w") as out:
            os.sched_setaffinity(0, self.cores)  # of this thread, and of what it starts
            began = time.perf_counter()
            process = subprocess.Popen(self._command, stdout=out, stderr=subprocess.STDOUT)
            os.sched_setaffinity(0, mine)
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        said = log.read_text()
        if process.returncode not in (0, 1) or "Traceback" in said:
            sys.exit(f"{' '.join(self._command)}\n{said}")
        return seconds, usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
