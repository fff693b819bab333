"""Is what the audit says of an engine true? Verdicts beside rules that share nothing with it.

Builds small networks of unusual shapes with TensorRT for RTX (no GPU is needed), each by several
plans: INT8, INT8 with FP16 around, INT8 with layers pinned to FP16 and FP32, FP16, FP32; and models
that are quantized by half, data or weights only, audited by the INT8 plan, where no product can be
INT8. What each product multiplies is read from the sources of its kernel in the engine
(audit_rules.py). Half of the networks, by a hash of their names, were not looked at while the audit
was made; both halves are counted. Exits with 1 where a verdict differs from a rule.

    python scripts/bench/bench_audit.py [--nets conv-2to8-k1-on1 random-24] [--plans int8 fp16]
                                        [--compute-capability 8.9] [--record FILE] [--verbose]

`--record` writes one case of each kind of kernel to a file, which the tests judge without TensorRT.
All networks by all plans take about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from audit_nets import AUDIT_NETS, held_out
from audit_rules import Truth
from onnx import numpy_helper

from qdebug.backends.tensorrt.build.build import build_engine
from qdebug.backends.tensorrt.build.settings import BuildSettings
from qdebug.backends.tensorrt.library import Library, load_library
from qdebug.engine_info.audit import AuditedLayer, AuditVerdict, audit
from qdebug.engine_info.compiled import PRODUCT_WORDS
from qdebug.engine_info.files.build_log import read_build_log
from qdebug.engine_info.layers import EngineInfo, EngineLayer, OnnxNode, Role
from qdebug.engine_info.tensors import EngineTensor
from qdebug.network.layers import QUANTIZABLE_OPS, Layers, find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.network.weights import values_of
from qdebug.plan.lower import required_opset
from qdebug.plan.pair import ModelPair, planned_pair
from qdebug.plan.plan import PrecisionPlan, TensorRange, bind_plan
from qdebug.types import Precision

SAME = (AuditVerdict.SAME, AuditVerdict.FUSED)


def _data_only(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A quantized model whose weights are in floating point."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    held = {i.name: i for i in model.graph.initializer}
    kept = []
    for node in proto.graph.node:
        if node.op_type != "DequantizeLinear" or node.input[0] not in held:
            kept.append(node)
            continue
        values, scale = (values_of(held[name]) for name in node.input[:2])
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1) % values.ndim
        shape = [-1 if i == axis else 1 for i in range(values.ndim)] if scale.ndim else []
        floats = (values.astype(np.float32) * scale.reshape(shape)).astype(scale.dtype)
        model.graph.initializer.append(numpy_helper.from_array(floats, node.output[0]))
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


def _weights_only(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A quantized model whose data are in floating point."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    quantizers = {n.output[0]: n for n in proto.graph.node if n.op_type == "QuantizeLinear"}
    pairs = [n for n in proto.graph.node if n.input[0] in quantizers]
    source = {n.output[0]: quantizers[n.input[0]].input[0] for n in pairs}
    dropped = {n.name for n in (*quantizers.values(), *pairs)}
    kept = [n for n in model.graph.node if n.name not in dropped]
    for node in kept:
        for i, tensor in enumerate(node.input):
            node.input[i] = source.get(tensor, tensor)
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in kept]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    return model


@dataclass(frozen=True)
class Kind:
    """A way to make an engine of a network: a plan, and what is done to the model before it is
    built."""

    title: str
    plan: PrecisionPlan
    pinned: bool = False
    spoil: Callable[[onnx.ModelProto], onnx.ModelProto] | None = None


_INT8 = PrecisionPlan(Precision.INT8)
_MIXED = replace(_INT8, fallback_precision=Precision.FP16)
KINDS = {
    "int8": Kind("INT8", _INT8),
    "int8+fp16": Kind("INT8, FP16 around", _MIXED),
    "pinned": Kind("INT8, layers pinned to FP16 and FP32", _MIXED, pinned=True),
    "fp16": Kind("FP16", PrecisionPlan(Precision.FP16)),
    "fp32": Kind("FP32", PrecisionPlan(Precision.FP32)),
    "data-only": Kind("INT8, but the model's weights are FP32", _INT8, spoil=_data_only),
    "weights-only": Kind("INT8, but the model's data are FP32", _INT8, spoil=_weights_only),
}


@dataclass(frozen=True)
class Judged:
    """A product of an engine: what a rule says that it multiplies, and what the audit says."""

    net: str
    kind: str
    truth: str
    between_casts: bool
    row: AuditedLayer

    @property
    def outcome(self) -> str:
        """The audit beside the rule."""
        if self.row.verdict is AuditVerdict.UNKNOWN:
            return "unknown"
        if not self.truth:
            return "no rule"
        if self.between_casts and self.truth == "fp16" and self.row.requested is Precision.FP32:
            return "as asked" if self.row.verdict is AuditVerdict.FUSED else "DIFFERS"
        right = (self.truth == self.row.requested) == (self.row.verdict in SAME)
        if not right or self.row.built != self.truth:
            return "DIFFERS"
        return "as asked" if self.row.verdict in SAME else "mismatch"


@dataclass(frozen=True)
class Built:
    """An engine of a network."""

    net: str
    kind: str
    asked: Mapping[str, Precision]
    info: EngineInfo
    truth: Truth
    seconds: float

    def judged(self, asked: Mapping[str, Precision] | None = None) -> Iterator[Judged]:
        """Every product, audited by what was asked, or by something else."""
        for row in audit(asked or self.asked, self.info).layers:
            if row.op_type in QUANTIZABLE_OPS:
                truth, between = self.truth.of(row.name), self.truth.between_casts(row.name)
                yield Judged(self.net, self.kind, truth, between, row)


def main() -> int:
    """Print the tables; 1 where a verdict differs from a rule."""
    arguments = _arguments()
    library = load_library("tensorrt-rtx")
    settings = BuildSettings(compute_capabilities=(arguments.compute_capability,))
    judged: list[Judged] = []
    others: list[Judged] = []
    seconds: list[float] = []
    recorded: dict[tuple[object, ...], dict[str, object]] = {}
    for net in arguments.nets:
        for kind in arguments.plans:
            built = build(library, settings, net, kind)
            seconds.append(built.seconds)
            judged += built.judged()
            for precision in (Precision.INT8, Precision.FP16, Precision.FP32):
                others += built.judged(dict.fromkeys(built.asked, precision))
            for key, case in cases(built):
                recorded.setdefault(key, case)
    print(f"{len(arguments.nets)} networks, {len(seconds)} engines of {library.name}")
    print(f"{sum(seconds):.0f} s, {sorted(seconds)[len(seconds) // 2]:.2f} s in the middle")
    for title, held in (("Looked at", False), ("Only counted", True)):
        _print_table(title, [j for j in judged if held_out(j.net) is held])
        asked = [j.outcome for j in others if held_out(j.net) is held]
        print(f"\nThe same engines, all asked in INT8, FP16, FP32: {dict(Counter(asked))}")
    _print_rows([*judged, *others], arguments.verbose)
    if arguments.record:
        lines = [json.dumps(case, separators=(",", ":")) for case in recorded.values()]
        arguments.record.write_text("\n".join(lines) + "\n")
    return int(any(j.outcome == "DIFFERS" for j in (*judged, *others)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    nets = {"nargs": "+", "default": list(AUDIT_NETS), "choices": AUDIT_NETS, "metavar": "NET"}
    parser.add_argument("--nets", help="default: all", **nets)  # type: ignore[arg-type]
    parser.add_argument("--plans", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument(
        "--compute-capability",
        type=lambda text: tuple(int(n) for n in text.split(".")),
        default=(8, 9),
        metavar="8.9",
        help="of the GPU to build for",
    )
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the cases of the tests")
    parser.add_argument("--verbose", action="store_true", help="list what is unknown or no rule")
    return parser.parse_args()


def build(library: Library, settings: BuildSettings, net: str, kind: str) -> Built:
    """The engine of a network by a plan, or of a model that does not do what the plan asks."""
    chosen = KINDS[kind]
    pair = _pair(net, chosen)
    proto = pair.candidate.proto
    started = time.perf_counter()
    engine = build_engine(library, chosen.spoil(proto) if chosen.spoil else proto, settings)
    seconds = time.perf_counter() - started
    info = read_build_log(engine.log, net)
    truth = Truth(engine.engine, info)
    return Built(net, kind, pair.precisions, info, truth, seconds)


def _pair(net: str, kind: Kind) -> ModelPair:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{net}.onnx"
        onnx.save(AUDIT_NETS[net](), path)
        model = prepare_model(read_model(path), required_opset(kind.plan))
    layers = find_layers(model.graph)
    plan = replace(kind.plan, layers=_pins(net, layers)) if kind.pinned else kind.plan
    missing = bind_plan(plan, model, layers).missing_ranges()
    ranges = {tensor: TensorRange(4.0) for tensor in missing}
    return planned_pair(model, bind_plan(plan.with_ranges(ranges, "a benchmark"), model, layers))


def _pins(net: str, layers: Layers) -> dict[str, Precision]:
    """A precision for each product, by a hash: half of them stay INT8."""
    choice = (Precision.INT8, Precision.FP16, Precision.FP32, Precision.INT8)
    names = [layer.name for layer in layers if layer.quantizable]
    return {n: choice[hashlib.sha256((net + n).encode()).digest()[0] % 4] for n in names}


def _print_table(title: str, judged: list[Judged]) -> None:
    heads = ("as asked", "mismatch", "unknown", "no rule", "DIFFERS")
    print(f"\n{title}:\n\n| plan | products | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 2)}")
    for kind in KINDS:
        counts = Counter(j.outcome for j in judged if j.kind == kind)
        if counts:
            cells = [KINDS[kind].title, counts.total(), *(counts[head] for head in heads)]
            print(f"| {' | '.join(map(str, cells))} |")


def _print_rows(judged: list[Judged], verbose: bool) -> None:
    shown = ("DIFFERS", "unknown", "no rule") if verbose else ("DIFFERS",)
    for j in judged:
        if j.outcome in shown:
            row = j.row
            print(
                f"{j.outcome}: {j.net} {j.kind}, {row.name} asked in {row.requested}: "
                f"{row.verdict}, built in {row.built or '?'}, rule {j.truth or '?'}, "
                f"{row.engine_layer}"
            )


def cases(built: Built) -> Iterator[tuple[tuple[object, ...], dict[str, object]]]:
    """Every product as the tests read it, with what makes its kernel of one kind."""
    for j in built.judged():
        layers = built.info.of_node.get(j.row.name, ())
        node = built.info.by_name.get(j.row.name)
        if not layers or node is None:
            continue
        kernel = next(x for x in layers if x.name == j.row.engine_layer)
        told = j.row.verdict is not AuditVerdict.UNKNOWN
        yield (
            (node.op_type, j.row.requested, j.row.built, told, *_form(kernel)),
            {
                "net": j.net,
                "plan": j.kind,
                "held_out": held_out(j.net),
                "product": node.name,
                "requested": j.row.requested,
                "multiplies": j.truth,
                "told": told,
                "io": [t.name for t in built.info.io],
                "nodes": [_node(n) for n in _related(node, layers, built.info)],
                "layers": [_layer(x) for x in _around(layers, built.info)],
            },
        )


def _form(kernel: EngineLayer) -> tuple[object, ...]:
    """What makes kernels alike: all operations, or of elementwise ones those that decide."""
    words = kernel.fused_words
    whole = PRODUCT_WORDS.intersection(words)
    deciding = frozenset(words) & {"Cast", "Roun", "Conc", "Mul", "Sum", "Etc"}
    operands = (kernel.inputs, kernel.constants, kernel.outputs)
    types = (frozenset(t.dtype for t in part) for part in operands)
    return kernel.layer_type, words if whole else deciding, *types


def _related(
    node: OnnxNode, layers: tuple[EngineLayer, ...], info: EngineInfo
) -> Iterator[OnnxNode]:
    """The node, what makes its operands, and what lies between the products that layers name."""
    makers = {m.name for t in node.inputs if (m := info.makers.get(t)) is not None}
    named = info.products & {n for layer in layers for n in layer.onnx_nodes}
    before = {name: _before(name, info) for name in named}
    after = {n.name for n in info.nodes if _before(n.name, info) & named}
    between = {n for name in named for n in before[name] & after}
    for other in info.nodes:
        if other.name in {node.name, *makers, *named, *between}:
            yield other


def _around(layers: tuple[EngineLayer, ...], info: EngineInfo) -> Iterator[EngineLayer]:
    """The layers of a product, and those that multiply for others that they name."""
    named = info.products & {n for layer in layers for n in layer.onnx_nodes}
    for other in info.layers:
        multiplies = other.role is Role.MATRIX and named & {*other.onnx_nodes}
        if multiplies or other in layers:
            yield other


def _before(name: str, info: EngineInfo) -> set[str]:
    """The nodes that a node gets something from."""
    found: set[str] = set()
    pending = [name]
    while pending:
        node = info.by_name.get(pending.pop())
        made = {
            m.name for t in (node.inputs if node else ()) if (m := info.makers.get(t)) is not None
        }
        pending += made - found
        found |= made
    return found


def _node(node: OnnxNode) -> list[object]:
    shapes = node.input_shapes[:2] if node.op_type in QUANTIZABLE_OPS else ()
    return [node.name, node.op_type, node.inputs[:2], node.outputs, shapes]


def _layer(layer: EngineLayer) -> list[object]:
    operands = [" ".join(map(_operand, x)) for x in (layer.inputs, layer.constants, layer.outputs)]
    return [layer.name, layer.layer_type, *operands, layer.onnx_nodes]


def _operand(tensor: EngineTensor) -> str:
    return f"{tensor.dtype}[{','.join(map(str, tensor.dims or ()))}]"


if __name__ == "__main__":
    sys.exit(main())
