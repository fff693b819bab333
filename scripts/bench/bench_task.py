"""Whether the layers that `compare` names are those that cost the task, by brute force.

Each network has a real score: a metric of `zoo_metrics.py`, top-1 for classifiers. `compare` gets
every other sample and names a set of layers to keep in FP32. Of the same samples the score itself
chooses the best set of that size: of all of them where these are few, else by a greedy search. On
the other samples, on which neither was chosen, the score is measured with the one set and the
other. Per network: what the score falls to, what the named set gives back of what the best one
does, and whether that is 90 % or more, or within the standard error of what the best one gives.

    python scripts/bench/bench_task.py --folder DIR                # networks of digit_zoo.py in DIR
    python scripts/bench/bench_task.py --folder DIR --form others  # as quantize_static makes them
    python scripts/bench/bench_task.py --folder DIR --form fp16 --nets yolox
    python scripts/bench/bench_task.py --folder DIR --nets X --metric FILE.py:NAME  # X.onnx in DIR
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime as ort
import zoo_metrics
from bench_effect import Net, networks, quantized
from common import parser_of

import qdebug
from qdebug.analyse.compared import Compared
from qdebug.analyse.effect.effects import float_outputs
from qdebug.analyse.effect.pinned import PinnedTask, begin_pinned
from qdebug.commands.compare import command
from qdebug.execute.evaluator import KeptReference, OutputKeeper
from qdebug.metrics.accumulate import CANDIDATE

FORMS = {
    "int8": {},
    "per-tensor": {"weights": "per-tensor"},
    "others": {},
    "fp16": {"precision": "fp16"},
}
"""How networks are quantized, by settings of `compare`."""
MOST_SETS = 120
"""So many sets are all tried; of more a greedy search finds the best."""
ENOUGH = 0.9
LEAST_LOST = 0.01
"""A network that loses less than a hundredth of its score has nothing to find."""


@dataclass(frozen=True)
class Found:
    """What was found on one network: scores on the samples on which nothing was chosen."""

    network: str
    layers: int
    samples: int
    reference: float
    planned: float
    named: tuple[str, ...]
    finding: str
    order: str
    figure: str
    with_named: float
    best: tuple[str, ...]
    with_best: float

    @property
    def loses(self) -> bool:
        """Whether the precision takes so much of the score that there is something to find."""
        return loses(self.reference, self.planned)

    @property
    def part(self) -> float:
        """What the named set gives back, as a part of what the best one does."""
        most = self.with_best - self.planned
        return (self.with_named - self.planned) / most if most > 0 else 1.0

    @property
    def right(self) -> bool:
        """Whether that is enough, or differs by less than the standard error of a share."""
        error = math.sqrt(max(0.0, self.with_best * (1 - self.with_best)) / self.samples)
        return self.part >= ENOUGH or self.with_best - self.with_named <= error


def main() -> None:
    """Print a row for each network, and how many are right."""
    ort.set_default_logger_severity(3)
    parser = parser_of(__doc__)
    parser.add_argument("--folder", type=Path, help="what digit_zoo.py wrote")
    parser.add_argument("--nets", nargs="+", metavar="NET", help="only these; default: all")
    parser.add_argument("--form", choices=FORMS, default="int8")
    parser.add_argument("--samples", type=int, default=500, help="of both halves; default: 500")
    parser.add_argument("--metric", help="of these networks; default: that of zoo_metrics.py")
    parser.add_argument("--no-search", action="store_true", help="without the best set")
    parser.add_argument("--json", type=Path, help="write what was found")
    arguments = parser.parse_args()
    print(
        "| network | layers | score FP32, as planned | named: set, order, by | with it | best set "
        "of that size | with it | part |\n|---|---|---|---|---|---|---|---|"
    )
    found = []
    for net in networks(arguments.folder):
        if arguments.nets is None or net.name in arguments.nets:
            name = arguments.metric or metric_of(net)
            one = measured(net, name, arguments.form, arguments.samples, arguments.no_search)
            found.append(one)
            print(row(one), flush=True)
    lost = [x for x in found if x.loses]
    right = sum(x.right for x in lost)
    print(f"\n{right} of {len(lost)} right; {len(found) - len(lost)} lose less than 1 %")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(x) | {"part": x.part} for x in found]))


def row(one: Found) -> str:
    """The row of a network."""
    part = f"{one.part:.0%}" if one.loses else "–"
    return (
        f"| {one.network} | {one.layers} | {one.reference:.3f}, {one.planned:.3f} | "
        f"{len(one.named)} ({one.finding}), {one.order}, {one.figure} | {one.with_named:.3f} | "
        f"{len({*one.best} & {*one.named})} the same | {one.with_best:.3f} | {part} |"
    )


def metric_of(net: Net) -> str:
    """The metric of a network of `digit_zoo.py` or of the assets."""
    function = zoo_metrics.BY_NETWORK.get(net.name)
    return f"{zoo_metrics.__file__}:{function}" if function else "top1"


def loses(reference: float, planned: float) -> bool:
    """Whether a score, higher is better, falls by what is worth a search."""
    return reference - planned >= LEAST_LOST * reference


def measured(net: Net, metric: str, form: str, samples: int, no_search: bool) -> Found:
    """What `compare` and the score name on one half of the samples; what it gives on the other."""
    with TemporaryDirectory() as folder:
        how: dict[str, Any] = {"metric": metric, **FORMS[form]}
        if form == "others":
            how |= {"reference": str(net.model), "model": str(quantized(net, Path(folder)))}
        elif form == "fp16":
            how |= {"model": str(net.model)}
        else:
            how |= {"model": str(net.model), "calib_data": str(net.calib)}
        seen, unseen = (half(net, k, samples, Path(folder)) for k in (0, 1))
        result = qdebug.compare(inputs=seen, **how)
        truth = captured(unseen, how)
        score, seen_score = scorer(truth), scorer(captured(seen, how))
        layers = [x.name for x in result.layers if x.effect is not None]
        named = (result.summary.layers if result.summary else ()) or tuple(layers[:1])
        named = named if len(named) <= 5 else tuple(n for n in layers if n in named)[:5]
        task = truth.result.metric
        assert task is not None
        search = loses(task.reference, task.candidate) and not no_search
        best = best_set(layers, len(named), seen_score) if search else named
        return Found(
            network=net.name,
            layers=len(layers),
            samples=truth.samples.count,
            reference=task.reference,
            planned=task.candidate,
            named=named,
            finding=str(result.summary.finding) if result.summary else "",
            order=str(result.curve.order) if result.curve else "",
            figure=str(result.curve.figure) if result.curve else "",
            with_named=score([named])[0],
            best=best,
            with_best=score([best])[0],
        )


def half(net: Net, first: int, samples: int, folder: Path) -> str:
    """A file of every other sample."""
    file = folder / f"half{first}.npz"
    with np.load(net.inputs) as data:
        np.savez(file, **{name: data[name][:samples][first::2] for name in data.files})
    return str(file)


def captured(inputs: str, how: dict[str, Any]) -> Compared:
    """A comparison on other samples, as `compare` has it once the metric is known."""
    kept: list[Compared] = []
    judged = command.judged

    def keeping(compared: Compared) -> Compared:
        kept.append(compared)
        return judged(compared)

    command.judged = keeping  # type: ignore[attr-defined]
    try:
        qdebug.compare(inputs=inputs, effect="none", **how)
    finally:
        command.judged = judged  # type: ignore[attr-defined]
    return kept[0]


def scorer(compared: Compared) -> Callable[[Sequence[tuple[str, ...]]], list[float]]:
    """The score with each of some sets of layers in FP32."""
    context, pair = compared.context, compared.pair
    with closing(context.backend.open(pair.reference.proto, ())) as session:
        outputs = tuple(float_outputs(pair, session))
        subset = compared.subset
        reference = KeptReference(
            context, pair.reference, session, subset, compared.gate.metric, stage=""
        )
    kept = tuple(reference.outputs.outputs)
    known = reference.outputs.by_batch
    task = PinnedTask(pair, reference.subset, known, outputs, kept)
    scores: dict[frozenset[str], float] = {}

    def score(sets: Sequence[tuple[str, ...]]) -> list[float]:
        due = [h for h in dict.fromkeys(map(frozenset, sets)) if h not in scores]
        for high, run in zip(due, begin_pinned(context, task, due), strict=True):
            keeper = OutputKeeper(CANDIDATE, kept)
            assert run is not None and reference.task is not None
            keeper.by_batch |= run.outputs
            scores[high] = reference.task(keeper.joined())
        return [scores[frozenset(names)] for names in sets]

    return score


def best_set(
    layers: Sequence[str], size: int, score: Callable[[Sequence[tuple[str, ...]]], list[float]]
) -> tuple[str, ...]:
    """The set of so many layers with the highest score."""
    if math.comb(len(layers), size) <= MOST_SETS:
        return _highest([*combinations(layers, size)], score)
    found: tuple[str, ...] = ()
    for _ in range(size):
        found = _highest([(*found, n) for n in layers if n not in found], score)
    return found


def _highest(
    sets: Sequence[tuple[str, ...]], score: Callable[[Sequence[tuple[str, ...]]], list[float]]
) -> tuple[str, ...]:
    scores: Iterator[float] = iter(score(sets))
    return max(zip(scores, [-k for k in range(len(sets))], sets, strict=True))[2]


if __name__ == "__main__":
    sys.exit(main())
