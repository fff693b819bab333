"""What each decision of `qdebug repair` is worth, on the networks of `bench_unseen.py`.

A repair as it is, and without one decision at a time: steps accepted by noise, since no metric is
given; the network of the last step that was kept, in place of the best one by held-out samples; a
remedy left out; the order of remedies as it was before (ranges of activations and of weights ahead
of least squares and bias correction, layers halved twice). Samples, metrics and figures are those
of `bench_unseen.py`: parts of what minmax lost that are back on samples that nothing else sees.
Beside them stands the difference to the repair as it is, with its standard error. What cannot
differ is not run: a repair without a remedy of which nothing was kept is the same.

    python scripts/bench/bench_changes.py --strangers FOLDER --nets NAME [--ways WAY ...]
        [--without REMEDY ...] [--never REMEDY ...] [--time-limit SECONDS [--of-cpu]] [--json FILE]

`--never` leaves remedies out of every way, for shorter runs. Minutes for each network and way.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import onnxruntime as ort
import unseen_networks
from bench_repair import executed
from bench_unseen import LOSS, Asked, Judging, Result, metric_of
from common import ASSETS, parser_of
from unseen_networks import Unseen
from yardstick_tasks import Arrays

import qdebug
import qdebug.commands.repair as command
from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.registry import REMEDIES
from qdebug.decide.repair import steps
from qdebug.decide.repair.steps import State, Trying
from qdebug.network.weights import write_model

NOISE, LAST, ORDER = "by-noise", "last-step", "old-order"
WAYS = (NOISE, LAST, ORDER)
WITHOUT = ("calibrator", "head-shift", "offsets")
AS_BEFORE = ("ranges", "weight-ranges", "least-squares", "bias-correction", "rounding")
"""Remedies in the order in which they were tried before."""
DEPTH_BEFORE = 2


@dataclass(frozen=True)
class Changed:
    """One way of repairing.

    Attributes:
        found: on the judging samples, next to minmax.
        change: of the score next to the repair as it is, with its standard error.
        change_of_loss: the same of the loss: more is worse.
        ran: False where it could not differ.
    """

    found: Result
    change: tuple[float, float] = (0.0, 0.0)
    change_of_loss: tuple[float, float] = (0.0, 0.0)
    ran: bool = True


@contextmanager
def order_before() -> Iterator[None]:
    """Remedies are tried in the order that they had, and layers halved as often."""
    among = iter(AS_BEFORE)
    names = [next(among) if name in AS_BEFORE else name for name in REMEDIES]
    before = {name: REMEDIES[name] for name in names}
    with patch.object(command, "REMEDIES", before), patch.object(steps, "_DEPTH", DEPTH_BEFORE):
        yield


@contextmanager
def last_network() -> Iterator[list[Quantized]]:
    """The network of the last step that a repair kept, whatever it chooses in the end."""
    kept: list[Quantized] = []
    alone = Trying.alone

    def seen(self: Trying, state: State, start: Quantized) -> State:
        kept.append(state.network)
        return alone(self, state, start)

    with patch.object(Trying, "alone", seen):
        yield kept


@dataclass(frozen=True)
class Repaired:
    """A repair's network on the judging samples, and that of the last step that it kept.

    Attributes:
        remedies: those of which a step was kept when it was tried, also if not in the end.
        seconds: wall time, CPU.
    """

    outputs: Arrays
    last: Arrays
    did: str
    did_last: str
    remedies: frozenset[str]
    seconds: tuple[float, float]


def repaired(
    net: Unseen,
    how: Mapping[str, Any],
    folder: Path,
    clock: AbstractContextManager[object] | None = None,
) -> Repaired:
    """Repair a network; limits are measured by `clock`."""
    names = [i.name for i in ort.InferenceSession(str(net.model)).get_inputs()]
    made = folder / "made.onnx"
    began, worked = time.monotonic(), time.process_time()
    with last_network() as networks, clock or nullcontext():
        found = qdebug.repair(
            str(net.model),
            calib_data={name: net.sets.fit[name] for name in names},
            inputs=net.sets.choose,
            pin=False,
            cache=False,
            **how,
        )
    seconds = time.monotonic() - began, time.process_time() - worked
    found.save(made, force=True)
    outputs = last = executed(made, net.sets.judge)
    in_turn = [i for i, step in enumerate(found.steps) if step.accepted and not step.alone]
    if any(one.chosen and list(one.steps) != in_turn for one in found.proof.answers):
        write_model(networks[-1].proto(), str(made), "made", force=True)
        last = executed(made, net.sets.judge)
    kept = frozenset(step.remedy for step in found.steps if step.accepted)
    names_last = dict.fromkeys(found.steps[i].remedy for i in in_turn)
    return Repaired(outputs, last, ", ".join(found.applied), ", ".join(names_last), kept, seconds)


def measured(net: Unseen, ways: tuple[str, ...], asked: Asked) -> list[Changed]:
    """FP32, minmax, the repair as it is, and each way."""
    never, time_limit = asked.never, asked.time_limit
    with TemporaryDirectory() as name:
        folder = Path(name)
        judging, base = judged_by_minmax(net, folder)

        def run(how: Mapping[str, Any], change: AbstractContextManager[None]) -> Repaired:
            given = {"metric": metric_of(net), "never": never, "time_limit": time_limit, **how}
            with change:
                return repaired(net, given, folder, asked.clock)

        as_it_is = run({}, nullcontext())

        def row(way: str, outputs: Arrays, one: Repaired, did: str) -> Changed:
            beside = judging.result(way, outputs, as_it_is.outputs)
            own = judging.result("", as_it_is.outputs, as_it_is.outputs)
            return Changed(
                judging.result(way, outputs, base, one.seconds, did),
                (beside.better, beside.error),
                (beside.loss - own.loss, beside.loss_error),
            )

        found = [
            Changed(judging.result("FP32", judging.reference, base)),
            Changed(judging.result("minmax", base, base)),
            row("repair", as_it_is.outputs, as_it_is, as_it_is.did),
        ]
        print(net.name, found[-1], file=sys.stderr, flush=True)
        for way in ways:
            if way == LAST:
                found.append(row(way, as_it_is.last, as_it_is, as_it_is.did_last))
                continue
            how, change, remedy = how_of(way, never)
            if remedy and remedy not in as_it_is.remedies and time_limit is None:
                found.append(Changed(replace(found[2].found, way=way), ran=False))
                continue
            one = run(how, change())
            found.append(row(way, one.outputs, one, one.did))
            print(net.name, found[-1], file=sys.stderr, flush=True)
    return found


def how_of(
    way: str, never: tuple[str, ...]
) -> tuple[Mapping[str, Any], Callable[[], AbstractContextManager[None]], str]:
    """Settings of a way, what is changed meanwhile, and the remedy that it leaves out, or ""."""
    if way == NOISE:
        return {"metric": None}, nullcontext, ""
    if way == ORDER:
        return {}, order_before, ""
    remedy = way.removeprefix("without ")
    return {"never": (*never, remedy)}, nullcontext, remedy


def judged_by_minmax(net: Unseen, folder: Path) -> tuple[Judging, Arrays]:
    """The judging samples, and what minmax makes of them."""
    names = [i.name for i in ort.InferenceSession(str(net.model)).get_inputs()]
    made, plan = folder / "minmax.onnx", str(folder / "plan.yaml")
    qdebug.compare(
        str(net.model),
        inputs={name: net.sets.fit[name] for name in names},
        precision="int8",
        effect="none",
        save_plan=plan,
        force=True,
    )
    qdebug.export(plan, model=str(net.model), to="onnx", output=str(made), force=True)
    judging = Judging(net, executed(net.model, net.sets.judge))
    return judging, executed(made, net.sets.judge)


def table(kept: Mapping[str, list[Changed]]) -> str:
    """One row for each network and way."""
    lines = [
        "| network | way | score | of the lost score | of the loss | next to repair | its loss "
        "| seconds, of CPU | kept |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for net, (exact, base, *found) in kept.items():
        lost = exact.found.score - base.found.score
        more = base.found.loss - exact.found.loss
        for one in found:
            result = one.found
            back = less = ""
            if lost >= LOSS:
                back = f"{result.better / lost:.0%} ± {result.error / lost:.0%}"
            if more > 0:
                less = f"{(base.found.loss - result.loss) / more:.0%} "
                less += f"± {result.loss_error / more:.0%}"
            beside, loss, seconds = "the same: nothing of it was kept", "", ""
            if one.ran:
                beside, loss = (f"{x:+.4f} ± {e:.4f}" for x, e in (one.change, one.change_of_loss))
                seconds = f"{result.seconds:.0f}, {result.cpu_seconds:.0f}"
            lines.append(
                f"| {net} | {result.way} | {result.score:.4f} | {back} | {less} | {beside} "
                f"| {loss} | {seconds} | {result.did} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Parse the options, measure what is not in the file, print."""
    parser = parser_of(__doc__, samples=250)
    parser.add_argument("--strangers", type=Path, help="networks of packages")
    parser.add_argument("--zoo", type=Path, help="folder that digit_zoo.py wrote")
    parser.add_argument("--assets", type=Path, default=ASSETS)
    parser.add_argument("--nets", nargs="+", help="only those whose name holds one of these")
    parser.add_argument("--ways", nargs="*", default=WAYS, metavar="WAY", help=", ".join(WAYS))
    parser.add_argument("--without", nargs="*", default=WITHOUT, metavar="REMEDY")
    parser.add_argument("--never", nargs="+", default=[], metavar="REMEDY")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS")
    parser.add_argument("--json", type=Path, help="keep the results")
    parser.add_argument("--of-cpu", action="store_true", help="the limit is of processor time")
    arguments = parser.parse_args()
    asked = Asked(arguments.time_limit, never=tuple(arguments.never), of_cpu=arguments.of_cpu)
    ort.set_default_logger_severity(3)
    kept: dict[str, list[Changed]] = {}
    if arguments.json and arguments.json.exists():
        known = json.loads(arguments.json.read_text())
        kept = {net: [_read(one) for one in found] for net, found in known.items()}
    ways = (*arguments.ways, *(f"without {remedy}" for remedy in arguments.without))
    for net in unseen_networks.every(arguments.strangers, arguments.assets, arguments.zoo):
        wanted = not arguments.nets or any(n.lower() in net.name.lower() for n in arguments.nets)
        if wanted and net.name not in kept:
            some = net.with_samples(arguments.samples)
            kept[net.name] = measured(some, ways, asked)
            if arguments.json:
                every = {name: [asdict(one) for one in found] for name, found in kept.items()}
                arguments.json.write_text(json.dumps(every, indent=1))
    print(table(kept))


def _read(kept: Mapping[str, Any]) -> Changed:
    pairs = (tuple(kept[name]) for name in ("change", "change_of_loss"))
    return Changed(Result(**kept["found"]), *pairs, ran=kept["ran"])


if __name__ == "__main__":
    main()
