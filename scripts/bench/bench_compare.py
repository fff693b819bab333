"""What `qdebug compare` costs beside the floor: ONNX Runtime alone, with all tensors as outputs.

The floor is the time for the FP32 model plus that for the Q/DQ model, each alone, with the tensors
that qdebug compares as outputs; the faster of the default number of threads and one. Both sides
take turns in one process, and the fastest round of each counts. The plan is given, so neither
side calibrates. Peak memory is that of a fresh process.

Where activations are kept, as many bytes are also written to the same disk by themselves: as they
come, and with the page cache emptied meanwhile; the faster of the two is what the disk can do.

`--stages` says where the time goes: of one more `compare --keep none`, each stage as a multiple of
the floor, and what opening sessions and running them takes in all, in CPU time.

    python scripts/bench/bench_compare.py [--nets W1 W2 W3] [--samples 64] [--memory]
        [--keep none all all/float16] [--directory DIR] [--cpu] [--stages]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnxruntime as ort
from common import add_networks, fastest, network, parser_of, peak_megabytes, session

from qdebug.analyse.compared import Compared
from qdebug.backends.options import DEFAULT_SESSIONS
from qdebug.commands.compare import command
from qdebug.commands.compare.command import compare
from qdebug.config.compare import CompareSettings
from qdebug.execute.model_pair import load_model, plan_from
from qdebug.network.layers import find_layers
from qdebug.network.samples import open_samples
from qdebug.plan.pair import planned_pair
from qdebug.plan.plan import bind_plan

_RELEASE_BYTES = 32 << 20


def main() -> None:
    """Print a table of ratios, or one peak memory (in a child process)."""
    parser = parser_of(__doc__, samples=64, rounds=3)
    add_networks(parser)
    parser.add_argument("--keep", nargs="+", default=["none", "worst:2", "all", "all/float16"])
    parser.add_argument("--memory", action="store_true", help="also peak memory at 16 and 256")
    parser.add_argument("--cpu", action="store_true", help="CPU time, where others are at work too")
    parser.add_argument("--stages", action="store_true", help="also where the time goes")
    parser.add_argument("--directory", help="on the disk to write to")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(_child(json.loads(arguments.child)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        for net in arguments.nets:
            _bench(net, arguments, Path(folder))


def _bench(net: str, arguments: argparse.Namespace, folder: Path) -> None:
    case = _Case(net, arguments.inputs, arguments.samples, folder)
    ways: dict[str, Callable[[], None]] = {
        "floor, default threads": lambda: case.floor(0),
        "floor, one thread": lambda: case.floor(1),
    }
    for keep in arguments.keep:
        ways[f"compare --keep {keep}"] = partial(case.compare, keep)
        if keep.startswith("all"):
            ways[f"write {keep}, released"] = partial(case.write, keep, release=True)
            ways[f"write {keep}"] = partial(case.write, keep, release=False)
    clock = time.process_time if arguments.cpu else time.perf_counter
    best = fastest(ways, arguments.rounds, case.clean, clock)
    floor = min(best["floor, default threads"], best["floor, one thread"])
    print(f"{case.path.name}: {case.count} samples, {case.megabytes:.0f} MB of FP32 per sample")
    for name, seconds in best.items():
        line = f"  {name:26} {seconds:7.2f} s   {seconds / floor:5.2f} × floor"
        keep = name.rpartition(" ")[2]
        if name.startswith("compare") and keep in case.written:
            disk = min(best[f"write {keep}"], best[f"write {keep}, released"])
            gigabytes = case.written[keep] / 1e9
            line += f"   {seconds / (floor + disk):5.2f} × (floor + disk), {gigabytes:.2f} GB"
        print(line)
    if arguments.stages:
        with _spent() as spent:
            case.compare("none")
        for stage, seconds in sorted(spent.items(), key=lambda x: -x[1]):
            print(f"    {stage:40} {seconds:7.2f} s   {seconds / floor:5.2f} × floor")
    if arguments.memory:
        for keep in arguments.keep:
            peaks = {n: case.peak_memory(n, keep) for n in (16, 256)}
            print(
                f"  peak memory, --keep {keep}: {peaks[16]} MB at 16 samples, {peaks[256]} at 256"
            )


class _Case:
    """A network with samples, a plan and the lowered model on disk."""

    def __init__(self, net: str, inputs: str | None, count: int, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "run.h5"
        self.written: dict[str, int] = {}
        self.block = memoryview(np.random.default_rng(0).bytes(8 << 20))
        self.path, self.data = network(net, inputs, max(count, 256), folder)
        self.plan = folder / "plan.yaml"
        compare(
            CompareSettings(
                str(self.path), str(self.data), samples=2, save_plan=str(self.plan), force=True
            )
        )
        self.settings = CompareSettings(str(self.path), str(self.data), plan=str(self.plan))
        self._prepare(count)

    def _prepare(self, count: int) -> None:
        plan = plan_from(self.settings.quantization)
        model = load_model(self.settings.model, plan, (), DEFAULT_SESSIONS)
        bound = bind_plan(plan, model, find_layers(model.graph))
        self.pair = planned_pair(model, bound)
        self.samples = open_samples(str(self.data), model.graph.inputs, limit=count)
        self.count = self.samples.count
        self.tensors = [t for t in self.pair.tensors if t in model.graph.producers]
        alone = session(model.graph.proto, self.tensors)
        outputs = alone.run(None, dict(self.samples.feeds(0, self.samples.batch_size)))
        self.megabytes = sum(o.nbytes for o in outputs) / self.samples.batch_size / 1e6

    def floor(self, threads: int) -> None:
        for graph in (self.pair.reference, self.pair.candidate):
            alone = session(graph.proto, self.tensors, threads)
            for batch in self.samples.batches():
                alone.run(None, dict(self.samples.feeds(batch.start, batch.count)))

    def compare(self, keep: str) -> None:
        compare(self._keeping(keep, self.count))
        if keep.startswith("all"):
            self.written[keep] = self.output.stat().st_size

    def clean(self) -> None:
        """No reference to reuse, and no writing left over from another way."""
        self.output.unlink(missing_ok=True)
        os.sync()

    def write(self, keep: str, *, release: bool) -> None:
        """As many bytes as the run file of `keep` has, on the same disk."""
        left, since = self.written[keep], 0
        with self.output.open("wb", buffering=0) as file:
            while left > 0:
                written = file.write(self.block[:left])
                left -= written
                since += written
                if release and since >= _RELEASE_BYTES:
                    since = 0
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            os.fsync(file.fileno())

    def _keeping(self, keep: str, count: int) -> CompareSettings:
        kind, _, dtype = keep.partition("/")
        return replace(
            self.settings,
            keep=kind,
            keep_dtype="float16" if dtype == "float16" else "float32",
            output=None if kind == "none" else str(self.output),
            samples=count,
        )

    def peak_memory(self, count: int, keep: str) -> int:
        self.clean()
        settings = json.dumps(vars(self._keeping(keep, count)))
        command = [sys.executable, __file__, "--child", settings]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return int(done.stdout.strip())


@contextmanager
def _spent() -> Iterator[Counter[str]]:
    """CPU seconds of the stages of `compare` meanwhile, and of ONNX Runtime in all of them."""
    spent: Counter[str] = Counter()

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            started = time.process_time()
            try:
                return function(*given, **named)
            finally:
                spent[name] += time.process_time() - started

        return call

    attempt = Compared.attempt

    def staged(self: Compared, stage: str, work: Any, **more: Any) -> Compared:
        return attempt(self, stage, timed(stage, work), **more)

    begin = "reading, lowering", command, "_prepared"
    both = "all tensors", command, "_measured"
    runtime = ort.InferenceSession
    within = ("(opening sessions)", runtime, "__init__"), ("(their runs)", runtime, "run")
    with ExitStack() as stack:
        for name, owner, function in (begin, both, *within):
            counted = timed(name, getattr(owner, function))
            stack.enter_context(patch.object(owner, function, counted))
        stack.enter_context(patch.object(Compared, "attempt", staged))
        yield spent


def _child(settings: dict[str, object]) -> int:
    compare(CompareSettings(**settings))  # type: ignore[arg-type]
    return peak_megabytes()


if __name__ == "__main__":
    main()
