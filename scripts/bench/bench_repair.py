"""What `qdebug repair` gives back of the accuracy that INT8 took, beside what other tools give.

For each network every tool gets the same calibration samples and quantizes what convolutions and
matrix products read: INT8, symmetric, one scale per activation tensor, weights per channel, nothing
pinned. ONNX Runtime executes each Q/DQ model literally, without optimizations, on held-out samples
that no tool has seen; `repair` alone gets selection samples, by which it decides what to keep.
Seconds are of the CPU.

    python scripts/bench/digit_zoo.py ZOO hard     # once; needs PyTorch
    python scripts/bench/bench_repair.py --zoo ZOO --results RESULTS --rivals PYTHON

PYTHON is the interpreter of an environment with NNCF, AIMET, Model Optimizer and onnxsim, as
`make_quantized_models.py` describes; without it there is ONNX Runtime only. What is in RESULTS
already is not measured again. Hours for everything.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import face_variants
import numpy as np
import onnx
import onnxruntime as ort
import rivals
import zoo_metrics
from common import DATA, parser_of

import qdebug

ROOT = Path(__file__).resolve().parents[2]
METRICS = Path(zoo_metrics.__file__)
CALIBRATORS = ("minmax", "percentile:99.99", "percentile:99.9", "entropy", "mse", "mean-max")
MAX_DROP = 0.01
DROPS = (MAX_DROP, 0.005)
"""Those for which layers are pinned; the second where it is asked for."""
VARIANTS = 12
"""Views of each of the face detector's pictures."""
LOSS = 0.02
"""A network that loses less of its metric has nothing to recover."""
Arrays = dict[str, Any]


# --- networks -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Net:
    """A network with its samples.

    Attributes:
        calib: what every tool calibrates on.
        choose: labelled samples that `repair` and `calibrate` may choose by.
        judge: labelled samples for the figures.
        metric: as `--metric` takes it.
        weights: scales of weights.
    """

    name: str
    model: Path
    calib: Path
    choose: Arrays
    judge: Arrays
    metric: str
    weights: str = "per-channel"

    @cached_property
    def reference(self) -> Arrays:
        """Outputs of the FP32 model on the judging samples."""
        return executed(self.model, self.judge)

    @cached_property
    def key(self) -> str:
        """Of everything that a figure depends on, but for the tool."""
        parts = [self.model.read_bytes(), self.calib.read_bytes(), METRICS.read_bytes()]
        return hashlib.sha256(b"".join(parts)).hexdigest()[:16]

    def score(self, outputs: Arrays) -> float:
        """The metric."""
        labels = {k: v for k, v in self.judge.items() if k not in inputs_of(self.model)}
        name = self.metric.rpartition(":")[2]
        given = {"reference": self.reference} if name == "faces" else {"labels": labels}
        return float(getattr(zoo_metrics, name)(outputs=outputs, **given))


def networks(zoo: Path | None, assets: Path | None, folder: Path) -> Iterator[Net]:
    """The bundled networks with weights per channel and per tensor, the zoo's, and the assets.
    Samples that are made are written to `folder`."""
    calib, holdout = DATA / "digits_calib.npz", DATA / "digits_holdout.npz"
    for name in ("digits_cnn", "digits_encoder"):
        whole = dict(np.load(holdout))
        net = Net(name, DATA / f"{name}.onnx", calib, *halves(whole), "top1")
        yield net
        yield replace(net, name=f"{name}, per tensor", weights="per-tensor")
    for model in sorted(zoo.glob("*.onnx")) if zoo else ():
        calib, holdout = (model.with_name(f"{model.stem}_{x}.npz") for x in ("calib", "holdout"))
        kind = zoo_metrics.BY_NETWORK.get(model.stem)
        metric = f"{METRICS}:{kind}" if kind else "top1"
        yield Net(model.stem, model, calib, *halves(dict(np.load(holdout))), metric)
    if assets and (asset := assets / "ultraface_slim").is_dir():
        yield face_detector(asset, folder / "ultraface_slim_calib.npz")
    if assets and (asset := assets / "minilm_l6").is_dir():
        whole = dict(np.load(asset / "inputs.npz")) | dict(np.load(asset / "labels.npz"))
        metric = f"{METRICS}:{zoo_metrics.BY_NETWORK[asset.name]}"
        yield Net(asset.name, asset / "model.onnx", asset / "calib.npz", *halves(whole), metric)


def face_detector(asset: Path, calib: Path) -> Net:
    """The face detector on variants of its few pictures. Those that judge are of other pictures
    than those that choose."""
    pictures = [np.load(asset / f"{name}.npz")["input"] for name in ("calib", "inputs")]
    made = [pictures[0], pictures[1][::2], pictures[1][1::2]]
    fitting, choose, judge = ({"input": face_variants.variants(x, VARIANTS)} for x in made)
    np.savez(calib, **fitting)
    metric = f"{METRICS}:{zoo_metrics.BY_NETWORK[asset.name]}"
    return Net(asset.name, asset / "model.onnx", calib, choose, judge, metric)


def halves(arrays: Arrays) -> tuple[Arrays, Arrays]:
    """Every second sample to choose by, the others to judge."""
    first, second = ({k: v[start::2] for k, v in arrays.items()} for start in (0, 1))
    return first, second


def inputs_of(model: Path) -> dict[str, onnx.ValueInfoProto]:
    """The inputs of a model that are not weights."""
    graph = onnx.load(model, load_external_data=False).graph
    weights = {w.name for w in graph.initializer}
    return {i.name: i for i in graph.input if i.name not in weights}


# --- execution ------------------------------------------------------------------------------


def executed(model: Path, samples: Arrays, batch: int = 50) -> Arrays:
    """Outputs of a model by ONNX Runtime without optimizations: no Q/DQ pair is fused."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    feeds = {i.name: samples[i.name].astype(types[i.type]) for i in session.get_inputs()}
    step = 1 if isinstance(session.get_inputs()[0].shape[0], int) else batch
    count = len(next(iter(feeds.values())))
    parts = [
        session.run(None, {name: a[k : k + step] for name, a in feeds.items()})
        for k in range(0, count, step)
    ]
    names = [o.name for o in session.get_outputs()]
    return {n: np.concatenate(p) for n, p in zip(names, zip(*parts, strict=True), strict=True)}


def sqnr_db(reference: Arrays, outputs: Arrays) -> float:
    """Of the worst output."""

    def of(a: Any, b: Any) -> float:
        noise = np.square(a.astype(np.float64) - b).sum()
        return 10 * math.log10(np.square(a.astype(np.float64)).sum() / max(noise, 1e-30))

    pairs = zip(reference.values(), outputs.values(), strict=True)  # some tools rename outputs
    return min(of(a, b) for a, b in pairs)


def form_of(model: Path) -> tuple[int, list[str]]:
    """How many products read Q/DQ on both sides, and what in the model TensorRT does not take."""
    proto = onnx.load(model)
    made = {t: n for n in proto.graph.node for t in n.output}
    constants = {w.name: w for w in proto.graph.initializer}
    inputs = {i.name for i in proto.graph.input} - set(constants)

    def dequantized(tensor: str) -> bool:
        node = made.get(tensor)
        while node is not None and node.op_type in rivals.MOVES:
            node = made.get(node.input[0])
        return node is not None and node.op_type == "DequantizeLinear"

    products = [n for n in proto.graph.node if n.op_type in rivals.PRODUCTS]
    quantized = sum(all(dequantized(t) for t in n.input[:2]) for n in products)
    odd = set()
    for node in proto.graph.node:
        if node.op_type != "QuantizeLinear" or node.input[0] in constants:
            continue
        arrays = [
            onnx.numpy_helper.to_array(constants[t]) for t in node.input[1:] if t in constants
        ]
        per_channel = bool(arrays) and arrays[0].size > 1 and not _of_weight(node, made, inputs)
        odd |= {"scale per channel"} if per_channel else set()
        odd |= {"zero point"} if len(arrays) > 1 and arrays[1].any() else set()
        odd |= {"unsigned"} if len(arrays) > 1 and arrays[1].dtype == np.uint8 else set()
    return quantized, sorted(odd)


def _of_weight(node: Any, made: Mapping[str, Any], inputs: set[str]) -> bool:
    """Whether what a QuantizeLinear reads is computed of weights alone."""
    left, seen = [node.input[0]], set()
    while left:
        tensor = left.pop()
        if tensor in inputs:
            return False
        if tensor in made and tensor not in seen:
            left += made[tensor].input
        seen.add(tensor)
    return True


# --- results --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """What a tool made of a network.

    Attributes:
        score: the metric on the judging samples.
        sqnr_db: of the worst output there.
        products: how many products are quantized.
        odd: what in the model TensorRT does not take.
        seconds: of the CPU.
        problem: why there is no figure.
        more: what only `repair` and `bisect` say.
    """

    network: str
    tool: str
    key: str
    version: str = ""
    score: float | None = None
    sqnr_db: float | None = None
    products: int = 0
    odd: Sequence[str] = ()
    seconds: float | None = None
    problem: str = ""
    more: Mapping[str, Any] | None = None


Maker = Callable[[Net, Path], Mapping[str, Any]]
"""Writes a Q/DQ model to a path; says `version`, `seconds` and `more`."""


def measured(net: Net, tool: str, make: Maker, folder: Path, again: bool) -> Result:
    """The result of one tool, kept in the folder."""
    kept = kept_as(net, tool, folder)
    model = kept.with_suffix(".onnx")
    if kept.exists() and not again:
        result = Result(**json.loads(kept.read_text()))
        if result.key == net.key:
            return result
    model.unlink(missing_ok=True)
    try:
        said = make(net, model)
        outputs = executed(model, net.judge)
        products, odd = form_of(model)
        result = Result(net.name, tool, net.key, score=net.score(outputs), products=products,
                        odd=odd, sqnr_db=sqnr_db(net.reference, outputs), **said)  # fmt: skip
    except Exception as error:  # whatever a tool raises is its result
        problem = f"{type(error).__name__}: {error}".strip().splitlines()
        result = Result(net.name, tool, net.key, problem=" ".join(problem)[:300])
    kept.write_text(json.dumps(asdict(result), indent=1))
    return result


def kept_as(net: Net, tool: str, folder: Path) -> Path:
    """The file of a result; the model lies beside it."""
    return folder / f"{net.name.replace(', ', '_').replace(' ', '_')}-{tool}.json"


def fp32(net: Net, out: Path) -> Mapping[str, Any]:
    """The network as it is."""
    proto = onnx.load(net.model)
    onnx.save(proto, out)
    return {}


def by_rival(tool: str, python: Path, limit: int, samples: int) -> Maker:
    """By another tool, in a process of its own on one core, for at most `limit` CPU seconds."""

    def alone() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        resource.setrlimit(resource.RLIMIT_CPU, (limit + 20, limit + 25))  # imports take a while

    def make(net: Net, out: Path) -> Mapping[str, Any]:
        program = [python, "-W", "ignore", rivals.__file__, tool, net.model, net.calib, out]
        done = subprocess.run(
            [*map(str, program), "--samples", str(samples), "--weights", net.weights],
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""},
            preexec_fn=alone,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode < 0:
            raise TimeoutError(f"more than {limit} s" if limit else "")
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["?"])[-1])
        said = json.loads(done.stdout.strip().splitlines()[-1])
        return {"version": said["version"], "seconds": said["seconds"]}

    return make


def by_calibrator(methods: Sequence[str], samples: int, net: Net, out: Path) -> Mapping[str, Any]:
    """The best of qdebug's calibrators, chosen on the choosing samples."""
    before = time.process_time()
    found = qdebug.calibrate(
        str(net.model),
        calib_data=first(net.calib, samples),
        method=tuple(methods),
        weights=net.weights,  # type: ignore[arg-type]
        holdout=net.choose,
        metric=net.metric,
    )
    seconds = round(time.process_time() - before, 2)
    plan = out.with_suffix(".yaml")  # with the kind of scales that weights have
    qdebug.compare(
        str(net.model),
        inputs={name: array[:1] for name, array in net.choose.items()},
        calibration=found,
        weights=net.weights,  # type: ignore[arg-type]
        effect="none",
        save_plan=str(plan),
        force=True,
    )
    qdebug.export(str(plan), model=str(net.model), to="onnx", output=str(out), force=True)
    return {"version": qdebug.__version__, "seconds": seconds, "more": {"best": found.best}}


def by_repair(
    only: Sequence[str], pin: bool, max_drop: float, samples: int, net: Net, out: Path
) -> Mapping[str, Any]:
    """`qdebug repair`."""
    before = time.process_time()
    found = qdebug.repair(
        str(net.model),
        calib_data=first(net.calib, samples),
        inputs=net.choose,
        metric=net.metric,
        max_drop=max_drop,
        weights=net.weights,
        pin=pin,
        output=str(out),
        force=True,
        **({"only": tuple(only)} if only else {}),
    )
    return {
        "version": qdebug.__version__,
        "seconds": round(time.process_time() - before, 2),
        "more": found.to_dict(),
    }


def by_bisect(max_drop: float, samples: int, net: Net, out: Path) -> Mapping[str, Any]:
    """`qdebug bisect`, which only pins: on half of the samples, and checked on the other half, as
    `repair` pins."""
    before = time.process_time()
    searched, held_out = halves(net.choose)
    found = qdebug.bisect(
        str(net.model),
        calib_data=first(net.calib, samples),
        inputs=searched,
        holdout=held_out,
        metric=net.metric,
        max_drop=max_drop,
        weights=net.weights,  # type: ignore[arg-type]
    )
    qdebug.export(found, model=str(net.model), to="onnx", output=str(out), force=True)
    return {
        "version": qdebug.__version__,
        "seconds": round(time.process_time() - before, 2),
        "more": found.to_dict(),
    }


def first(data: Path, samples: int) -> Arrays:
    """The first samples of a file."""
    return {name: array[:samples] for name, array in np.load(data).items()}


def remedies() -> tuple[str, ...]:
    """The names that `--only` knows."""
    from qdebug.decide.remedies.registry import REMEDIES

    return tuple(REMEDIES)


def tools(arguments: argparse.Namespace) -> dict[str, Maker]:
    """By name, in the order of the table."""
    samples, python = arguments.samples, arguments.rivals
    found: dict[str, Maker] = {
        "fp32": fp32,
        "minmax": partial(by_calibrator, ("minmax",), samples),
        "calibrators": partial(by_calibrator, CALIBRATORS, samples),
    }
    for name, tool in rivals.TOOLS.items():
        own = tool.package == "onnxruntime"
        if own or python:
            interpreter = Path(sys.executable) if own else python
            found[name] = by_rival(name, interpreter, arguments.limit, samples)
    found["repair"] = partial(by_repair, (), False, MAX_DROP, samples)
    for name in remedies():
        found[f"only-{name}"] = partial(by_repair, (name,), False, MAX_DROP, samples)
    for max_drop in DROPS:
        found[f"bisect{suffix(max_drop)}"] = partial(by_bisect, max_drop, samples)
        found[f"repair-pins{suffix(max_drop)}"] = partial(by_repair, (), True, max_drop, samples)
    return found


def suffix(max_drop: float) -> str:
    """Of the names of ways that pin."""
    return "" if max_drop == MAX_DROP else f"-{max_drop}"


# --- tables ---------------------------------------------------------------------------------


def recovered(base: Mapping[str, Result], result: Result | None) -> float | None:
    """The share of the metric lost with minmax that came back."""
    whole, lost = base["fp32"].score, base["minmax"].score
    if result is None or result.score is None or whole is None or lost is None:
        return None
    return (result.score - lost) / (whole - lost) if whole - lost >= LOSS else None


def table(found: Mapping[str, Mapping[str, Result]], names: Sequence[str]) -> str:
    """The metric, and below it the output SQNR, of each tool on each network."""
    head = "| tool | " + " | ".join(found) + " |"
    rows = [head, "|---" * (len(found) + 1) + "|"]
    rows += [f"| {n} | " + " | ".join(cell(r.get(n)) for r in found.values()) + " |" for n in names]
    return "\n".join(rows)


def cell(result: Result | None) -> str:
    """Metric, SQNR and seconds."""
    if result is None:
        return ""
    if result.score is None:
        return "over time" if "TimeoutError" in result.problem else "no result"
    shown = f"{result.score:.3f}"
    shown += f", {result.sqnr_db:.1f} dB" if result.tool != "fp32" else ""
    return shown + (f", {result.seconds:.0f} s" if result.seconds else "")


FAMILIES = {
    "best calibrator": ("calibrators",),
    "ONNX Runtime": ("ort-minmax", "ort-entropy", "ort-percentile"),
    "NNCF": ("nncf-ranges", "nncf-fast", "nncf-full", "nncf-fast-smooth", "nncf-full-smooth"),
    "AIMET": tuple(name for name in rivals.TOOLS if name.startswith("aimet")),
    "Model Optimizer": ("modelopt-max", "modelopt-entropy"),
    "NNCF, scales per channel": ("nncf-per-channel",),
    "repair": ("repair",),
}
"""Columns of the short table; in each stands the best of its ways, by the judging samples."""


def short_table(found: Mapping[str, Mapping[str, Result]]) -> str:
    """One row for each network: the metric and the output SQNR of the best way of each package."""
    rows = [
        "| network | FP32 | minmax | " + " | ".join(FAMILIES) + " |",
        "|---" * (len(FAMILIES) + 3) + "|",
    ]
    for net, results in found.items():
        cells = [f"{results['fp32'].score:.3f}", figures(results["minmax"])]
        for ways in FAMILIES.values():
            tried = [results[w] for w in ways if w in results]
            known = [r for r in tried if r.score is not None]
            best = max(known, key=lambda r: (r.score, r.sqnr_db), default=None)
            whole = results["minmax"].products
            few = f" ({best.products} of {whole})" if best and best.products < whole else ""
            cells.append(figures(best) + few if best else "no result" if tried else "")
        rows.append(f"| {net} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def figures(result: Result) -> str:
    """Metric and SQNR."""
    return f"{result.score:.3f}, {result.sqnr_db:.1f} dB"


def ablation(found: Mapping[str, Mapping[str, Result]]) -> str:
    """One row for each network: what each remedy does alone."""
    names = [f"only-{n}" for n in remedies()]
    names = [n for n in names if any(n in results for results in found.values())]
    rows = [
        "| network | " + " | ".join(n.removeprefix("only-") for n in names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for net, results in found.items():
        if any(n in results for n in names):
            cells = [
                "" if n not in results else "no result" if results[n].score is None
                else figures(results[n]) for n in names
            ]  # fmt: skip
            rows.append(f"| {net} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def pins(found: Mapping[str, Mapping[str, Result]]) -> str:
    """One row for each network and drop: the share of the cost, in multiply-accumulates, that is
    pinned to stay within it, by `bisect` alone and after remedies, and what that gives."""
    rows = ["| network | allowed drop | bisect alone | repair, then pins |", "|---|---|---|---|"]
    for net, results in found.items():
        for max_drop in DROPS:
            alone = results.get(f"bisect{suffix(max_drop)}")
            both = results.get(f"repair-pins{suffix(max_drop)}")
            if both is None and max_drop == MAX_DROP:
                both = results.get("repair")
            if alone and alone.more:
                cells = f"{pinned_share(alone)} | {pinned_share(both)}"
                rows.append(f"| {net} | {max_drop} | {cells} |")
    return "\n".join(rows)


def pinned_share(result: Result | None) -> str:
    """In percent, and what it gives; nothing where `repair` without pins missed its target."""
    if result is None or not result.more:
        return ""
    search = result.more if result.tool.startswith("bisect") else result.more["pinning"]
    if search is None and not result.more["passed"]:
        return ""
    share = search["cost"]["pinned_share"] if search else 0.0
    return f"{100 * share:.1f} %: {figures(result)}"


def summary(found: Mapping[str, Mapping[str, Result]], names: Sequence[str]) -> str:
    """Per tool over the networks that lose: median share recovered, how often 90 % or more, the
    median gain in SQNR over minmax, and against `repair` ahead, level (0.01) and behind."""
    rows = [
        "| tool | networks | median share recovered | 90 % or more | median SQNR gain "
        "| repair ahead, level, behind | no result |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names:
        results = {n: r.get(name) for n, r in found.items()}
        shares = {n: recovered(found[n], r) for n, r in results.items()}
        known = [x for x in shares.values() if x is not None]
        gains = [
            r.sqnr_db - found[n]["minmax"].sqnr_db
            for n, r in results.items()
            if r and r.sqnr_db is not None and found[n]["minmax"].sqnr_db is not None
        ]
        failed = sum(r is not None and r.score is None for r in results.values())
        if not known and not failed:
            continue
        rows.append(
            f"| {name} | {len(known)} | {statistics.median(known) if known else math.nan:.2f} "
            f"| {sum(x >= 0.9 for x in known)} "
            f"| {statistics.median(gains) if gains else math.nan:.1f} dB "
            f"| {against_repair(found, name)} | {failed} |"
        )
    return "\n".join(rows)


def against_repair(found: Mapping[str, Mapping[str, Result]], name: str) -> str:
    """On how many networks that lose `repair` is ahead, level and behind."""
    ahead = level = behind = 0
    for results in found.values():
        own, other = results.get("repair"), results.get(name)
        if recovered(results, own) is None or other is None or own is None or own.score is None:
            continue
        difference = own.score - other.score if other.score is not None else math.inf
        ahead += difference > MAX_DROP
        behind += difference < -MAX_DROP
        level += abs(difference) <= MAX_DROP
    return f"{ahead}, {level}, {behind}"


def main() -> None:
    """Parse the options."""
    ort.set_default_logger_severity(3)
    parser = parser_of(__doc__, samples=64, limit=120)
    parser.add_argument("--zoo", type=Path, help="folder that digit_zoo.py wrote")
    parser.add_argument("--assets", type=Path, help="folder of the face detector and MiniLM")
    parser.add_argument("--rivals", type=Path, metavar="PYTHON", help="interpreter that has them")
    parser.add_argument("--results", type=Path, help="folder; without it nothing is kept")
    parser.add_argument("--nets", nargs="+", metavar="NET", help="only these")
    parser.add_argument("--tools", nargs="+", metavar="TOOL", help="only these, and fp32, minmax")
    parser.add_argument("--again", nargs="*", default=(), metavar="TOOL", help="measure anew")
    parser.add_argument("--quick", action="store_true", help="no ablations, nothing pinned")
    parser.add_argument("--json", type=Path, help="every result")
    parser.add_argument("--kept", action="store_true", help="measure nothing: only what is there")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        arguments.results = arguments.results or Path(folder)
        arguments.results.mkdir(parents=True, exist_ok=True)
        run(arguments)


def run(arguments: argparse.Namespace) -> None:
    """Measure what is missing, and print the tables."""
    ways = tools(arguments)
    chosen = [n for n in ways if n in ("fp32", "minmax") or wanted(n, arguments)]
    found: dict[str, dict[str, Result]] = {}
    for net in networks(arguments.zoo, arguments.assets, arguments.results):
        if arguments.nets and net.name not in arguments.nets:
            continue
        found[net.name] = {}
        for name in chosen:
            if arguments.kept and not kept_as(net, name, arguments.results).exists():
                continue
            again = name in arguments.again
            result = measured(net, name, ways[name], arguments.results, again)
            found[net.name][name] = result
            shown = result.problem or f"{cell(result)} {' '.join(result.odd)}"
            print(f"{net.name:24} {name:18} {shown}", file=sys.stderr, flush=True)
    others = [n for n in chosen if n not in ("fp32", "minmax")]
    for part in (short_table(found), table(found, chosen), summary(found, others)):
        print(part, end="\n\n")
    print(ablation(found), end="\n\n")
    print(pins(found))
    if arguments.json:
        every = [asdict(r) for results in found.values() for r in results.values()]
        arguments.json.write_text(json.dumps(every, indent=1), encoding="utf-8")


def wanted(name: str, arguments: argparse.Namespace) -> bool:
    """Whether a tool was asked for."""
    if arguments.tools:
        return name in arguments.tools
    if name.endswith(suffix(DROPS[1])):
        return bool(arguments.kept)
    return not (arguments.quick and (name.startswith("only-") or "pin" in name or name == "bisect"))


if __name__ == "__main__":
    main()
