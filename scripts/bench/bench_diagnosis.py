"""Plant one fault at a time into real networks, and count how often `compare` names it.

A case counts where its fault costs 3 dB or more at the outputs. The culprit is right where the
first layer of the result is one that the fault touches; the label is right where the main cause of
the highest ranked such layer is one that was planted. Half of the cases, by a hash of their names,
are held out: they are not to be looked at while causes are worked on. Healthy networks follow: the
share of their layers for which a fault is claimed.

    python scripts/bench/digit_zoo.py ZOO       # once; needs PyTorch
    python scripts/bench/bench_diagnosis.py --zoo ZOO

About ten minutes. `tests/helpers/planted_faults.py` has the faults.
"""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from common import DATA, planted_parser
from unseen_networks import unseen

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "helpers"))
import planted_network as planted
from planted_faults import OF_OTHERS, OF_PLANS

import qdebug
from qdebug.metrics.tensor import noise_db
from qdebug.results.compare import CompareResult

LEAST_COST_DB = 3.0
Plant = Callable[[planted.Network], Iterator[planted.Fault]]
KINDS: dict[str, Sequence[Plant]] = {
    "plans": OF_PLANS,
    "others": OF_OTHERS,
    "all": (*OF_PLANS, *OF_OTHERS),
}
FEW = {"face": 4, "page orientation": 8, "PP-OCR cls": 16}
"""How many samples of the large networks."""
FAULTS = (
    *("clipping", "coarse-step", "weight-range", "unrepresentative-calibration"),
    *("stale-calibration", "fp16-overflow", "fp16-underflow", "index-flip"),
)
"""Labels that claim a fault; the others say how an error spreads, or that INT8 rounds."""


@dataclass(frozen=True)
class Fix:
    """What is advised first, and the SQNR of the worst parts of the outputs: as it is, as the
    advice predicts it, and of the network without the fault on other samples."""

    name: str
    before_db: float
    predicted_db: float
    measured_db: float


@dataclass(frozen=True)
class Outcome:
    """What `compare` made of one case.

    Attributes:
        cost_db: what the fault costs at the outputs.
        rank: of the first layer that the fault touches; None where none was compared.
        label: the main cause of that layer, "" for none.
        right: the label is one of those planted.
        fix: that is named first, where the case has a network without the fault to measure it on.
    """

    id: str
    kind: str
    network: str
    held_out: bool
    cost_db: float
    rank: int | None
    label: str
    right: bool
    fix: Fix | None = None


def strangers_of(folder: Path, assets: Path, made: Path) -> dict[str, tuple[Path, Path, Path]]:
    """The same of two networks of other people, whose samples are written to `made`."""
    found = {}
    for net in unseen(folder, assets):
        if net.name in ("page orientation", "PP-OCR cls"):
            files = made / f"{net.name}_calib.npz", made / f"{net.name}_holdout.npz"
            for file, arrays in zip(files, (net.sets.fit, net.sets.judge), strict=True):
                np.savez(file, **arrays)  # type: ignore[arg-type]
            found[net.name] = (net.model, *files)
    return found


def networks(zoo: Path | None, assets: Path) -> dict[str, tuple[Path, Path, Path]]:
    """By name the model, calibration samples and samples of the bundled networks, those of the zoo,
    and the face detector."""
    digits = DATA / "digits_calib.npz", DATA / "digits_holdout.npz"
    found = {n: (DATA / f"{n}.onnx", *digits) for n in ("digits_cnn", "digits_encoder")}
    for path in sorted(zoo.glob("*.onnx")) if zoo else ():
        calibration, samples = (
            path.with_name(f"{path.stem}_{part}.npz") for part in ("calib", "holdout")
        )
        found[path.stem] = (path, calibration, samples)
    face = assets / "ultraface_slim"
    if face.is_dir():
        found["face"] = (face / "model.onnx", face / "calib.npz", face / "inputs.npz")
    return found


def examined(
    name: str,
    files: tuple[Path, Path, Path],
    samples: int,
    kinds: str,
    held_out: bool,
    effect: str,
) -> tuple[list[Outcome], tuple[int, int, int]]:
    """All cases of a network, and the claims about it without a fault."""
    network = planted.load(name, *files, min(samples, FEW.get(name, samples)))
    return list(cases_of(network, KINDS[kinds], held_out, effect)), claims(network)


def compared(settings: dict[str, object], effect: str = "none") -> CompareResult:
    """`qdebug.compare`, told these settings."""
    rest = {**settings, "effect": effect}
    return qdebug.compare(rest.pop("model"), **rest)


def judged(
    fault: planted.Fault, base: CompareResult, effect: str, unseen: planted.Tensors
) -> Outcome:
    """Run one case; `base` is its network without the fault."""
    result = compared(dict(fault.settings), effect)
    touched = next((x for x in result.layers if x.name in fault.culprits), None)
    cause = fault.main_cause(result)
    fix = None
    if fault.mended is not None and effect != "none":
        after = compared({**fault.mended, "inputs": unseen})
        fix = Fix(*advised(result), noise_db(after.worst_noise))
    return Outcome(
        fault.id,
        fault.kind,
        fault.network,
        fault.held_out,
        planted.cost_db(result, base),
        touched.rank if touched else None,
        cause.label if cause else "",
        fault.is_named(result),
        fix,
    )


def advised(result: CompareResult) -> tuple[str, float, float]:
    """What is advised first: another way to quantize, else the first layer in FP32; the SQNR of the
    outputs as it is, and what is predicted."""
    before = noise_db(result.worst_noise)
    if result.cures and result.cures[0].helps:
        return result.cures[0].name, before, result.cures[0].sqnr_db
    gain = result.layers[0].gain_db
    return "the layer in FP32", before, before + (gain if gain is not None else math.nan)


def cases_of(
    network: planted.Network, faults: Sequence[Plant], held_out: bool, effect: str
) -> Iterator[Outcome]:
    """Every case of a network, held-out ones only where asked for."""
    bases: dict[str, CompareResult] = {}
    for fault in chain.from_iterable(plant(network) for plant in faults):
        if fault.held_out and not held_out:
            continue
        if fault.mended is not None:
            base = compared(dict(fault.mended))
        else:
            precision = str(fault.settings.get("precision", "int8"))
            if precision not in bases:
                bases[precision] = compared(planted.healthy(network, precision))
            base = bases[precision]
        yield judged(fault, base, effect, network.unseen)


def claims(network: planted.Network) -> tuple[int, int, int]:
    """Of a healthy network in INT8: its layers, those with a cause of their own, and those for
    which a fault is claimed."""
    layers = compared(planted.healthy(network)).layers
    explained = [x for x in layers if any(c.label in (*FAULTS, "rounding") for c in x.causes)]
    blamed = [x for x in layers if any(c.label in FAULTS for c in x.causes)]
    return len(layers), len(explained), len(blamed)


# --- output ---------------------------------------------------------------------------------


def table(outcomes: Sequence[Outcome]) -> None:
    """Per kind of fault: cases, culprits and labels that are right; the wrong ones below."""
    print(f"{'fault':20} {'cases':>5} {'culprit first':>14} {'label right':>12}")
    kinds: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        kinds[outcome.kind].append(outcome)
    for kind, items in [*sorted(kinds.items()), ("all", list(outcomes))]:
        print(f"{kind:20} {len(items):5} {share(x.rank == 1 for x in items):>14} "
              f"{share(x.right for x in items):>12}")  # fmt: skip


def share(held: Iterable[bool]) -> str:
    """How many of them, and in percent."""
    found = list(held)
    return f"{sum(found)} ({100 * sum(found) / len(found):.0f}%)" if found else "-"


def confusion(outcomes: Sequence[Outcome]) -> None:
    """Faults by the label of the layer that they touch."""
    labels = sorted({x.label or "none" for x in outcomes})
    kinds = sorted({x.kind for x in outcomes})
    count = Counter((x.kind, x.label or "none") for x in outcomes)
    print(f"{'fault':20} " + " ".join(labels))
    for kind in kinds:
        print(f"{kind:20} " + " ".join(f"{count[kind, x] or '.':>{len(x)}}" for x in labels))


def advice(outcomes: Sequence[Outcome]) -> None:
    """By kind and advice: cases, the median of the SQNR before, predicted and measured, and by how
    much the last two differ."""
    fixes: dict[tuple[str, str], list[Fix]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.fix is not None:
            fixes[outcome.kind, outcome.fix.name].append(outcome.fix)
    for (kind, name), items in sorted(fixes.items()):
        before, predicted, measured = (
            np.array([getattr(x, f"{part}_db") for x in items])
            for part in ("before", "predicted", "measured")
        )
        apart = np.abs(predicted - measured)
        print(f"| `{kind}` | {name} | {len(items)} | {np.median(before):.1f} | "
              f"{np.median(predicted):.1f} | {np.median(measured):.1f} | {np.median(apart):.1f} | "
              f"{apart.max():.1f} |")  # fmt: skip


def main() -> None:
    """Run, and print the tables."""
    parser = planted_parser(__doc__)
    modes = ("fast", "exact", "none")
    parser.add_argument("--effect", choices=modes, default="fast", help="none: by local error")
    parser.add_argument("--development", action="store_true", help="leave held-out cases alone")
    parser.add_argument("--kinds", choices=KINDS, default="all", help="of faults")
    parser.add_argument("--strangers", type=Path, help="folder as of bench_yardsticks.py")
    parser.add_argument("--json", type=Path, help="every development case, for work on causes")
    arguments = parser.parse_args()
    outcomes: list[Outcome] = []
    healthy: dict[str, tuple[int, int, int]] = {}
    found = networks(arguments.zoo, arguments.assets)
    made = TemporaryDirectory()
    if arguments.strangers:
        found |= strangers_of(arguments.strangers, arguments.assets, Path(made.name))
    names = [name for name in found if name in (arguments.nets or found)]
    held_out = not arguments.development
    with ProcessPoolExecutor(arguments.jobs) as pool:
        how = arguments.samples, arguments.kinds, held_out, arguments.effect
        jobs = {n: pool.submit(examined, n, found[n], *how) for n in names}
        for name, job in jobs.items():
            if job.exception():
                traceback.print_exception(job.exception())
                continue
            cases, healthy[name] = job.result()
            outcomes += cases
            print(f"{name}: {len(cases)} planted", file=sys.stderr, flush=True)
            if arguments.json:  # after each, so that a run that is stopped leaves what it has
                shown = [asdict(x) for x in outcomes if not x.held_out]
                arguments.json.write_text(json.dumps(shown, indent=1))
    if healthy:
        report(outcomes, healthy)
    if failed := [name for name in names if name not in healthy]:
        sys.exit(f"failed: {', '.join(failed)}")


def report(outcomes: Sequence[Outcome], healthy: dict[str, tuple[int, int, int]]) -> None:
    """Print the tables."""
    counted = [x for x in outcomes if x.cost_db >= LEAST_COST_DB]
    names = {x.network for x in counted}
    print(f"{len(outcomes)} faults planted, {len(counted)} cost {LEAST_COST_DB:g} dB or more, "
          f"in {len(names)} networks")  # fmt: skip
    for title, held_out in (("Development", False), ("Held out", True)):
        part = [x for x in counted if x.held_out == held_out]
        if part:
            print(f"\n{title}")
            table(part)
    print("\nMain cause of the layer that the fault touches")
    confusion(counted)
    print("\nOpen cases that are wrong")
    for x in counted:
        if not x.held_out and not (x.rank == 1 and x.right):
            print(f"{x.id}: {x.cost_db:.1f} dB, rank {x.rank}, {x.label or 'no cause'}")
    print("\nWhat is advised first: predicted and measured dB")
    advice(counted)
    print("\nHealthy networks: layers, explained, blamed")
    for name, figures in healthy.items():
        print(f"{name:20} {figures[0]:5} {figures[1]:5} {figures[2]:5}")
    layers, explained, blamed = (sum(x) for x in zip(*healthy.values(), strict=True))
    print(f"{'all':20} {layers:5} {explained:5} {blamed:5}  {100 * blamed / layers:.1f}% of the "
          f"layers, {100 * blamed / max(explained, 1):.1f}% of those explained")  # fmt: skip


if __name__ == "__main__":
    main()
