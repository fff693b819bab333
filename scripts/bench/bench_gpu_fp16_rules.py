"""How engines round in FP16, BF16 and FP8: what they give for many small networks, kept bit by bit.

    python scripts/bench/bench_gpu_fp16_rules.py record FILE.npz [--nets FOLDER …] [--limit 170]
    python scripts/bench/bench_gpu_fp16_rules.py judge FILE.npz [--nets FOLDER …] [--only TEXT]

`record` needs TensorRT for RTX and a GPU that it executes on. Each network is lowered to one
format, built once with every tensor as an output and once as it is, and executed;
all outputs go to the file, so that a rule can be tried on them later, without a GPU.
FOLDER holds model.onnx, with fixed shapes, and inputs.npz, which is fed whole. `build` in place of
`record` needs no GPU: engines are only built, and what the simulation gives is recorded.

`judge` executes each node of the recorded models in several ways of rounding, on the operands that
the engine itself had, and prints for each way the share of elements that are equal and, in dB, how
far the engine is from it; for the engine as it is, the same of the whole network.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
from onnx import TensorProto, helper
from rounding_networks import Case, small_cases

from qdebug.backends.simulation import SimulationBackend
from qdebug.inmemory import InMemory
from qdebug.network.graph import Graph
from qdebug.network.layers import find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.plan.lower import Lowered, lower, required_opset
from qdebug.plan.plan import PrecisionPlan, TensorRange, bind_plan
from qdebug.types import Array, Fp16Kernels

CORNER = 16
"""Rows and columns that are kept of a result of which that is enough."""
LARGEST_BYTES = 24 << 20
"""Of the recorded outputs of one engine: what is larger is left out, so that the file is small."""


def main() -> None:
    """Record engines, or judge what was recorded."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("record", "judge", "build"))
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--nets", nargs="*", type=Path, default=[], metavar="FOLDER")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this in their name")
    parser.add_argument("--limit", type=float, default=170, metavar="SECONDS")
    args = parser.parse_args()
    cases = [c for c in (*small_cases(), *map(_of_folder, args.nets)) if args.only in c.name]
    if args.action == "judge":
        judge(args.file, {case.name: case for case in cases})
        return
    record(cases, args.file, time.monotonic() + args.limit, executed=args.action == "record")


def _of_folder(folder: Path) -> Case:
    with np.load(folder / "inputs.npz") as file:
        feeds = {name: file[name] for name in file.files}
    return Case(f"net {folder.name}", lambda: onnx.load(folder / "model.onnx"), feeds=feeds)


# Recording.


def record(cases: list[Case], path: Path, ends_at: float, *, executed: bool) -> None:
    """Build, and where `executed` run, what fits into the time; one file with all of it."""
    kept: dict[str, Array] = {}
    rows: list[dict[str, Any]] = []
    engine = _engine if executed else _built_only
    for case in cases:
        if time.monotonic() > ends_at:
            print(f"{case.name}: left out, the time is over", flush=True)
            continue
        began = time.monotonic()
        row: dict[str, Any] = {"case": case.name, "precision": str(case.precision)}
        try:
            with _single_scales() if case.raw else nullcontext():
                lowered, feeds = _lowered(case)
                key = str(len(rows))
                inner = [t for t in lowered.tensors.values() if t in lowered.graph.producers]
                row["tensors"] = dict(lowered.tensors)
                ways = {"clean": []} if case.corner else {"all": inner, "clean": []}
                for way, marked in ways.items():
                    outputs, skipped = engine(lowered.graph.proto, marked, feeds)
                    row[f"skipped {way}"] = skipped
                    size = sum(a.nbytes for a in outputs.values())
                    for name, whole in outputs.items():
                        array = whole[:, :CORNER, :CORNER] if case.corner else whole
                        if size <= LARGEST_BYTES or name in lowered.graph.outputs:
                            kept[f"{key}|{way}|{name}"] = array
        except Exception as error:  # a network that fails must not end the run
            row["failed"] = f"{type(error).__name__}: {error}"[:500]
        row["seconds"] = round(time.monotonic() - began, 2)
        print(case.name, row.get("failed", "ok"), row["seconds"], flush=True)
        rows.append(row)
    kept["rows"] = np.frombuffer(json.dumps(rows).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez_compressed(file, **kept)  # type: ignore[arg-type]
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


def _lowered(case: Case) -> tuple[Lowered, dict[str, Array]]:
    """The network in its format, ranges by the largest magnitude of the sample that is fed."""
    plan = PrecisionPlan(case.precision, weights=case.weights)
    file = read_model(InMemory(case.name, case.make()))
    model = prepare_model(file, required_opset(plan))
    layers = find_layers(model.graph)
    feeds = dict(case.feeds or _noise(model.graph.proto))
    missing = bind_plan(plan, model, layers).missing_ranges()
    if missing:
        made = [t for t in missing if t in model.graph.producers]
        seen = {**feeds, **SimulationBackend().open(model.graph.proto, made).run(feeds)}
        ranges = {t: TensorRange(float(np.abs(seen[t]).max())) for t in missing}
        plan = plan.with_ranges(ranges, "min-max")
    return lower(bind_plan(plan, model, layers)), feeds


def _noise(proto: onnx.ModelProto) -> dict[str, Array]:
    rng = np.random.default_rng(7)
    return {
        value.name: rng.normal(size=[d.dim_value for d in value.type.tensor_type.shape.dim])
        .astype(np.float32)
        for value in proto.graph.input
    }  # fmt: skip


def _engine(
    proto: onnx.ModelProto, marked: list[str], feeds: dict[str, Array]
) -> tuple[dict[str, Array], list[str]]:
    from qdebug.backends.tensorrt.build.settings import BuildSettings
    from qdebug.backends.tensorrt.execute.cuda import open_cuda
    from qdebug.backends.tensorrt.execute.session import TensorRTSession
    from qdebug.backends.tensorrt.factory import EngineFactory
    from qdebug.backends.tensorrt.library import load_library

    maker = EngineFactory(load_library("tensorrt-rtx"), BuildSettings(), cuda=open_cuda())
    made = maker.make(proto, outputs=marked)
    with TensorRTSession(made.engine) as session:
        outputs = {name: np.array(array) for name, array in session.run(feeds).items()}
    return outputs, [f"{s.tensor}: {s.reason}" for s in made.skipped]


def _built_only(
    proto: onnx.ModelProto, marked: list[str], feeds: dict[str, Array]
) -> tuple[dict[str, Array], list[str]]:
    """Without a GPU: that the library builds it."""
    from qdebug.backends.tensorrt.build.build import build_engine
    from qdebug.backends.tensorrt.build.settings import BuildSettings
    from qdebug.backends.tensorrt.library import load_library

    settings = BuildSettings(compute_capabilities=((8, 9),))
    built = build_engine(load_library("tensorrt-rtx"), proto, settings, outputs=marked)
    simulated = SimulationBackend(fp16_kernels=Fp16Kernels.TENSORRT).open(proto, marked)
    return dict(simulated.run(feeds)), [f"{s.tensor}: {s.reason}" for s in built.skipped]


@contextmanager
def _single_scales() -> Iterator[None]:
    """Lowers and builds FP8 weights that have one scale with that one."""
    with (
        patch("qdebug.plan.lower.channel_axis", return_value=None),
        patch("qdebug.plan.rewrite.fp8_scales.channel_axis", return_value=None),
    ):
        yield


# Judging.


def judge(path: Path, cases: Mapping[str, Case]) -> None:
    """Print how near each way of rounding comes to the engines of a file, of those of `cases`, by
    name, that are in it."""
    with np.load(path) as file:
        kept = {name: file[name] for name in file.files}
    for key, row in enumerate(json.loads(kept["rows"].tobytes())):
        case = cases.get(row["case"])
        if case is None:
            continue
        if "failed" in row:
            print(f"{case.name}: {row['failed']}")
            continue
        recorded = Recorded.of(kept, str(key), case)
        print(f"{row['case']}")
        for tensor, value in recorded.all.items():
            said = _agreements(recorded.segment(tensor), tensor, value)
            print(f"  {recorded.graph.producers[tensor].op_type:22} {said}")
        for tensor, value in recorded.clean.items():
            whole = recorded.graph.proto, recorded.feeds
            print(f"  as it is               {_agreements(whole, tensor, value)}")


@dataclass(frozen=True)
class Recorded:
    """A case as `record` left it.

    Attributes:
        all, clean: what the engine gave that has every tensor as an output, and the one that has
            only those of the model.
    """

    graph: Graph
    feeds: dict[str, Array]
    all: dict[str, Array]
    clean: dict[str, Array]

    @classmethod
    def of(cls, kept: Mapping[str, Array], key: str, case: Case) -> Recorded:
        """The case of this number."""
        lowered, feeds = _lowered(case)
        parts: dict[str, dict[str, Array]] = {"all": {}, "clean": {}}
        for name, array in kept.items():
            number, _, rest = name.partition("|")
            part, _, tensor = rest.partition("|")
            if number == key and part in parts:
                parts[part][tensor] = array
        return cls(lowered.graph, feeds, parts["all"], parts["clean"])

    def segment(self, tensor: str) -> tuple[onnx.ModelProto, dict[str, Array]]:
        """The nodes between recorded tensors that make one of them, and what the engine fed them.
        A feed of BF16 is recorded in FP32: a Cast makes it BF16 again."""
        have = {**self.feeds, **self.all}
        nodes, feeds, todo, done = set[str](), dict[str, Array](), [tensor], set[str]()
        while todo:
            maker = self.graph.producers[todo.pop()]
            nodes.add(maker.name)
            for read in maker.inputs:
                if read in have:
                    feeds[read] = have[read]
                elif read in self.graph.producers and read not in done:
                    done.add(read)
                    todo.append(read)
        model = onnx.ModelProto()
        model.CopyFrom(self.graph.proto)
        graph = model.graph
        del graph.node[:], graph.output[:], graph.input[:]
        for name, array in feeds.items():
            kind = self.graph.types[name]
            given = helper.np_dtype_to_tensor_dtype(array.dtype)
            outside = name if given == kind else f"{name}:fed"
            graph.input.append(helper.make_tensor_value_info(outside, given, array.shape))
            if given != kind:
                graph.node.append(helper.make_node("Cast", [outside], [name], to=kind))
        graph.node.extend(n for n in self.graph.proto.graph.node if n.name in nodes)
        kind = self.graph.types[tensor]
        graph.output.append(helper.make_tensor_value_info(tensor, kind, None))
        fed = {i.name: feeds[i.name.removesuffix(":fed")] for i in graph.input}
        return model, fed


def _agreements(part: tuple[onnx.ModelProto, dict[str, Array]], tensor: str, value: Array) -> str:
    """Of each way of rounding: the share of elements that equal the engine's, and its distance."""
    model, feeds = part
    said = []
    for name, run in WAYS.items():
        try:
            simulated = run(model, tensor, feeds)
        except Exception as error:  # a way that a node does not have
            said.append(f"{name}: {type(error).__name__}")
            continue
        simulated = simulated[tuple(slice(size) for size in value.shape)]  # of a corner
        equal = np.mean((simulated == value) | (np.isnan(simulated) & np.isnan(value)))
        said.append(f"{name} {equal:6.1%} {_db(value, simulated):6.1f}")
    return "   ".join(said)


def _db(reference: Array, other: Array) -> float:
    wide = reference.astype(np.float64)
    error = float(((wide - other) ** 2).sum())
    return 10 * float(np.log10((wide**2).sum() / error)) if error else float("inf")


def _simulated(
    kernels: Fp16Kernels, model: onnx.ModelProto, tensor: str, feeds: dict[str, Array]
) -> Array:
    run = SimulationBackend(fp16_kernels=kernels).open(model, [tensor]).run
    return np.asarray(run(feeds)[tensor], np.float32)


def _without_rounding(model: onnx.ModelProto, tensor: str, feeds: dict[str, Array]) -> Array:
    """All in FP32; what it gives is rounded once, to the format of the tensor."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    narrow = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    kind = _rounded_to(Graph(onnx.shape_inference.infer_shapes(model)), tensor)
    for value in (*wide.graph.input, *wide.graph.output):
        if value.type.tensor_type.elem_type in narrow:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for weight in wide.graph.initializer:
        if weight.data_type in narrow:
            values = onnx.numpy_helper.to_array(weight).astype(np.float32)
            weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    for node in wide.graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i in narrow:
                attribute.i = TensorProto.FLOAT
    del wide.graph.value_info[:]
    fed = {n: a.astype(np.float32) if a.dtype == np.float16 else a for n, a in feeds.items()}
    found = np.asarray(SimulationBackend().open(wide, [tensor]).run(fed)[tensor])
    if kind in narrow:
        found = found.astype(helper.tensor_dtype_to_np_dtype(kind))
    return found.astype(np.float32)


def _rounded_to(graph: Graph, tensor: str) -> int | None:
    """The ONNX type that a tensor was rounded to: behind a Cast, those of its operand."""
    maker = graph.producers.get(tensor)
    return graph.types[maker.inputs[0] if maker and maker.op_type == "Cast" else tensor]


WAYS: dict[str, Callable[[onnx.ModelProto, str, dict[str, Array]], Array]] = {
    "simulated": partial(_simulated, Fp16Kernels.TENSORRT),
    "exact": partial(_simulated, Fp16Kernels.EXACT),
    "FP32 within": _without_rounding,
}
"""As FP16 kernels are simulated; each node rounded once; rounded only where it is observed."""


if __name__ == "__main__":
    main()
