"""Which figure follows the score? Quantized variants of networks with a task, by candidate losses.

Each network is quantized in some thirty ways: calibrators, weights per tensor and per channel,
ranges that are too wide or too narrow, remedies one by one and in turn, sets of layers in FP32.
Every variant is scored on held-out samples. On other samples candidate yardsticks are computed:
noise of the outputs, noise of the worst part, cosine, and losses of the task. For each the table
says

- the rank correlation (Spearman) with the score over all variants;
- how many pairs of variants it orders wrongly, of those whose scores differ by more than two
  standard errors of the difference (jackknife over the samples), and
- how many of these it orders wrongly by more than two standard errors of its own: changes that an
  acceptance by it would get wrong with confidence.

"score itself" is the score on those other samples: a yardstick is of use where it is better.

    python scripts/bench/bench_yardsticks.py --strangers FOLDER --zoo ZOO [--json FILE]

FOLDER holds the ONNX files of PyPI packages, one folder for each package, ZOO what `digit_zoo.py
hard` writes. One to six minutes of one core for each network.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import unseen_networks
import yardstick_tasks as tasks
from common import parser_of
from scipy.stats import spearmanr
from unseen_networks import Unseen

from qdebug.backends.options import SessionSettings
from qdebug.backends.simulation import SimulationBackend
from qdebug.backends.sizing import parallelism
from qdebug.calibrators.registry import parse_method
from qdebug.config.specs import QuantizationSpec
from qdebug.decide.remedies.quantized import Quantized, quantized
from qdebug.decide.remedies.registry import REMEDIES
from qdebug.decide.remedies.remedy import Study
from qdebug.decide.repair.study import study_of
from qdebug.errors import QdebugError
from qdebug.execute.context import simulation_context
from qdebug.execute.gather import calibrated, gather_ranges
from qdebug.execute.model_pair import load_model, plan_from, plan_ranges
from qdebug.metrics.effect import output_energies
from qdebug.network.outputparts import output_parts
from qdebug.network.samples.subset import whole
from qdebug.network.samplespec import SampleSpec
from qdebug.plan.plan import TensorRange
from qdebug.types import Precision, ignore_progress

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
METHODS = (
    "minmax", "percentile:99.99", "percentile:99.9", "percentile:99", "entropy", "mse", "mean-max",
)  # fmt: skip
WIDTHS = (0.3, 0.5, 0.7, 1.5, 3.0, 6.0)
"""Ranges of minmax are made so much wider."""
PINNED = (0.25, 0.5, 0.75)
"""Shares of the layers that stay in FP32, at random."""
ERRORS = 2.0
_NO_SETTINGS = SessionSettings()


@dataclass(frozen=True)
class Figures:
    """What a variant makes of the samples: the parts of its score, [samples, 2], on those that
    judge and those that choose, and its yardsticks, [samples], on the latter."""

    judged: Array
    chosen: Array
    yardsticks: Mapping[str, Array]


# --- variants ----------------------------------------------------------------------------------


def variants(net: Unseen, folder: Path) -> Iterator[tuple[str, Quantized]]:
    """Quantized variants of a network by name, each made when it is asked for."""
    folder.mkdir(exist_ok=True)
    path = folder / "fit.npz"
    names = [i.name for i in ort.InferenceSession(str(net.model)).get_inputs()]
    np.savez(path, **{name: net.sets.fit[name] for name in names})  # type: ignore[arg-type]
    spec = SampleSpec(str(path))
    context = simulation_context(parallelism(), ignore_progress, _NO_SETTINGS)
    for weights in ("per-channel", "per-tensor"):
        asked = QuantizationSpec(str(net.model), spec, weights=weights, cache=False)
        plan = plan_from(asked)
        model = load_model(str(net.model), plan, (spec,), context.sessions)
        fitting = whole(spec.open(model.graph.inputs))
        start = quantized(model, plan_ranges(asked, context, plan, model, fitting).bound)
        study = study_of(context, fitting, method="minmax", memory_bytes=1 << 30, effect={})
        gathered = gather_ranges(context, start.graph, fitting, cached=False)
        needed = list(start.bound.needed_ranges())
        for method in METHODS if weights == "per-channel" else METHODS[:3]:
            found = calibrated(gathered.histograms, needed, parse_method(method))
            ranges = {t: TensorRange(amax, method) for t, amax in found.items()}
            yield f"{method}, {weights}", start.with_ranges(ranges)
        if weights == "per-channel":
            yield from _changed_ranges(start, needed)
            yield from _with_pins(start)
            yield from _repaired(start, study)


def _changed_ranges(start: Quantized, needed: Sequence[str]) -> Iterator[tuple[str, Quantized]]:
    known = start.bound.plan.tensors
    for width in WIDTHS:
        wider = {t: TensorRange(known[t].amax * width, "minmax") for t in needed}  # type: ignore[operator]
        yield f"minmax x {width}", start.with_ranges(wider)


def _with_pins(start: Quantized) -> Iterator[tuple[str, Quantized]]:
    layers = [layer.name for layer in start.bound.quantized_layers()]
    rng = np.random.default_rng(5)
    for share in PINNED:
        for number in range(2):
            chosen = rng.choice(layers, round(share * len(layers)), replace=False)
            yield f"{share:.0%} in FP32, {number}", pinned(start, chosen)
    yield "first half in FP32", pinned(start, layers[: len(layers) // 2])
    yield "last half in FP32", pinned(start, layers[len(layers) // 2 :])


def pinned(start: Quantized, layers: Sequence[str]) -> Quantized:
    """With some layers in FP32."""
    high = {str(name): Precision.FP32 for name in layers}
    bound = start.bound
    plan = replace(bound.plan, layers={**bound.plan.layers, **high})
    return replace(start, bound=replace(bound, plan=plan, precisions={**bound.precisions, **high}))


def _repaired(start: Quantized, study: Study) -> Iterator[tuple[str, Quantized]]:
    """Remedies alone, and some in turn, on all layers that they apply to."""
    alone = ("channel-scales", "equalization", "least-squares", "bias-correction", "weight-ranges")
    for name in alone:
        for number, made in enumerate(proposals(start, study, name)):
            yield f"{name}, {number}", made
    network = start
    chain: tuple[str, ...] = ()
    for name in ("channel-scales", "least-squares", "bias-correction"):
        found = next(proposals(network, study, name), None)
        if found is not None:
            network, chain = found, (*chain, name)
            if len(chain) > 1:
                yield " + ".join(chain), network


def proposals(network: Quantized, study: Study, name: str, most: int = 2) -> Iterator[Quantized]:
    """The first proposals of a remedy on all its layers."""
    remedy = REMEDIES[name]
    layers = remedy.layers(network)
    if not layers:
        return
    for number, proposal in enumerate(remedy.propose(study, network, layers)):
        yield proposal.result
        if number + 1 == most:
            return


# --- figures -----------------------------------------------------------------------------------


class Judged:
    """Runs a network over the choosing and the judging samples, and computes every figure."""

    def __init__(self, net: Unseen) -> None:
        self._net = net
        self._backend = SimulationBackend(1, sessions=_NO_SETTINGS)
        self._reference: dict[str, Arrays] = {}
        self._parts: Mapping[str, Any] = {}
        inputs = ort.InferenceSession(str(net.model)).get_inputs()
        self._free = not isinstance(inputs[0].shape[0], int)

    def fp32(self, start: Quantized) -> float:
        """Run the reference; its score on the judging samples."""
        sets = self._net.sets
        for which in ("choose", "judge"):
            self._reference[which] = self._run(start.graph.proto, getattr(sets, which))
        self._parts = output_parts(start.graph)
        parts = self._net.task.parts(self._reference["judge"], sets.judge, self._reference["judge"])
        return score(parts)

    def __call__(self, variant: Quantized) -> Figures:
        """The figures of a variant."""
        sets, task = self._net.sets, self._net.task
        proto = variant.proto()
        judged = self._run(proto, sets.judge)
        chosen = self._run(proto, sets.choose)
        reference = self._reference["choose"]
        found = {
            **self._noise(reference, chosen),
            **{n: loss(chosen, sets.choose, reference) for n, loss in task.losses.items()},
        }
        return Figures(
            task.parts(judged, sets.judge, self._reference["judge"]),
            task.parts(chosen, sets.choose, reference),
            {n: np.nan_to_num(x, nan=1e9, posinf=1e9) for n, x in found.items()},
        )

    def _run(self, proto: Any, samples: Arrays) -> Arrays:
        found: dict[str, list[Array]] = {}
        with closing(self._backend.open(proto, ())) as session:
            names = [i.name for i in proto.graph.input if i.name in samples]
            count = len(samples[names[0]])
            step = min(count, 16) if self._free else 1
            for i in range(0, count, step):
                outputs = session.run({name: samples[name][i : i + step] for name in names})
                for name, array in outputs.items():
                    found.setdefault(name, []).append(array)
        return {name: np.concatenate(arrays) for name, arrays in found.items()}

    def _noise(self, reference: Arrays, outputs: Arrays) -> Mapping[str, Array]:
        names = list(reference)
        count = len(tasks.only(reference))
        plain = output_energies(reference, outputs, names, count)
        apart = output_energies(reference, outputs, names, count, self._parts)
        noise, parts = (e[:, 0] / e[:, 1].mean(axis=1, keepdims=True) for e in (plain, apart))
        flat = [
            [np.asarray(x[n], np.float64).reshape(count, -1) for n in names]
            for x in (reference, outputs)
        ]
        a, b = (np.concatenate(x, axis=1) for x in flat)
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        found = {
            "noise": noise.mean(axis=0),
            "cosine": 1 - (a * b).sum(axis=1) / np.maximum(lengths, 1e-12),
            "log noise": np.log10(np.maximum(noise.mean(axis=0), 1e-12)),
        }
        if len(parts) > len(noise):
            found["worst part"] = parts[parts.mean(axis=1).argmax()]
            found["log worst part"] = np.log10(np.maximum(found["worst part"], 1e-12))
        return found


def score(parts: Array) -> float:
    """A ratio of sums over the samples."""
    above, below = parts.sum(axis=0)
    return float(above / below) if below else 0.0


def left_out(parts: Array) -> Array:
    """The score without each sample in turn."""
    rest = parts.sum(axis=0) - parts
    return rest[:, 0] / np.maximum(rest[:, 1], 1e-12)


def difference(a: Array, b: Array) -> tuple[float, float]:
    """By how much the score of `b` is higher, and the standard error of that (jackknife)."""
    change = left_out(b) - left_out(a)
    count = len(change)
    spread = change - change.mean()
    return score(b) - score(a), math.sqrt((count - 1) / count * float(spread @ spread))


@dataclass(frozen=True)
class Row:
    """One yardstick on one network.

    Attributes:
        correlation: of its rank with that of the score.
        pairs: of variants whose scores surely differ.
        wrong: how many of them it orders the other way; `tied`: not at all.
        surely_wrong: how many by more than its own error.
        surely_right: the same the right way.
    """

    network: str
    yardstick: str
    correlation: float
    pairs: int
    wrong: int
    tied: int
    surely_wrong: int
    surely_right: int


def rows(network: str, found: Sequence[Figures]) -> list[Row]:
    """Of every yardstick."""
    scores = [score(f.judged) for f in found]
    names = list(found[0].yardsticks)
    sure = []
    for i in range(len(found)):
        for k in range(i):
            by, error = difference(found[k].judged, found[i].judged)
            if abs(by) > ERRORS * error and by != 0:
                sure.append((k, i) if by > 0 else (i, k))  # the second is better
    made = []
    for name in ("score itself", *names):
        own = name == "score itself"
        values = [-score(f.chosen) if own else float(f.yardsticks[name].mean()) for f in found]
        wrong = tied = surely = right = 0
        for worse, better in sure:
            gain = values[worse] - values[better]
            wrong, tied = wrong + (gain < 0), tied + (gain == 0)
            if own:
                _, error = difference(found[worse].chosen, found[better].chosen)
            else:
                pair = found[worse].yardsticks[name] - found[better].yardsticks[name]
                error = float(pair.std(ddof=1)) / math.sqrt(len(pair))
            surely += gain < -ERRORS * error
            right += gain > ERRORS * error
        correlation = float(spearmanr(values, scores).statistic)
        made.append(Row(network, name, -correlation, len(sure), wrong, tied, surely, right))
    return made


# --- the table -----------------------------------------------------------------------------------


def main() -> None:
    """Parse the options, measure, print."""
    parser = parser_of(__doc__, samples=250, variants=1000)
    parser.add_argument("--strangers", type=Path, help="networks of packages")
    parser.add_argument("--zoo", type=Path, help="folder that digit_zoo.py wrote")
    assets = Path(__file__).resolve().parents[3] / "shared" / "assets"
    parser.add_argument("--assets", type=Path, default=assets)
    parser.add_argument("--nets", nargs="+", help="only those whose name holds one of these")
    parser.add_argument("--json", type=Path, help="keep the rows and the variants")
    arguments = parser.parse_args()
    ort.set_default_logger_severity(3)
    kept = (
        json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {}
    )
    for net in unseen_networks.every(arguments.strangers, arguments.assets, arguments.zoo):
        wanted = not arguments.nets or any(n.lower() in net.name.lower() for n in arguments.nets)
        if wanted and net.name not in kept:
            kept[net.name] = measured(net, arguments.samples, arguments.variants)
            if arguments.json:
                arguments.json.write_text(json.dumps(kept, indent=1))
    print(table(kept))


def measured(net: Unseen, samples: int, most: int) -> dict[str, Any]:
    """Everything about one network, by so many variants and samples of each set at most."""
    began = time.monotonic()
    net = net.with_samples(samples)
    judge = Judged(net)
    fp32 = math.nan
    found: dict[str, Figures] = {}
    with TemporaryDirectory() as folder:
        for name, variant in islice(variants(net, Path(folder)), most):
            if math.isnan(fp32):
                fp32 = judge.fp32(variant)
            try:
                found[name] = judge(variant)
            except QdebugError as error:
                print(f"{net.name}, {name}: {error.message}", file=sys.stderr)
    made = rows(net.name, list(found.values()))
    seconds = time.monotonic() - began
    print(f"{net.name}: FP32 {fp32:.3f}, {len(found)} variants, {seconds:.0f} s", file=sys.stderr)
    for name, figures in found.items():
        means = ", ".join(f"{n} {x.mean():.4g}" for n, x in figures.yardsticks.items())
        print(f"   {score(figures.judged):.3f} {name}: {means}", file=sys.stderr)
    for row in made:
        print(
            f"   {row.yardstick:30} {row.correlation:6.3f}  wrong {row.wrong:3}, tied {row.tied:3}"
            f" of {row.pairs}, surely wrong {row.surely_wrong}, surely right {row.surely_right}",
            file=sys.stderr,
            flush=True,
        )
    return {
        "kind": net.task.kind,
        "fp32": fp32,
        "seconds": seconds,
        "samples": [len(next(iter(x.values()))) for x in (net.sets.choose, net.sets.judge)],
        "variants": {n: score(f.judged) for n, f in found.items()},
        "rows": [row.__dict__ for row in made],
    }


def table(kept: Mapping[str, Any]) -> str:
    """One row for each network and yardstick."""
    lines = [
        "| network | yardstick | rank correlation | pairs wrong | surely wrong | surely right |",
        "|---|---|---|---|---|---|",
    ]
    for net, found in kept.items():
        low, high = min(found["variants"].values()), max(found["variants"].values())
        head = f"{net}, {found['kind']}: {found['fp32']:.3f}, {low:.3f} to {high:.3f}"
        for row in found["rows"]:
            share = f"{row['wrong']} of {row['pairs']}"
            lines.append(
                f"| {head} | {row['yardstick']} | {row['correlation']:.2f} | {share} "
                f"| {row['surely_wrong']} | {row['surely_right']} |"
            )
            head = ""
    return "\n".join(lines)


if __name__ == "__main__":
    main()
