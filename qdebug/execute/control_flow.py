"""Open a model, and find out what its If, Loop and Scan do on all samples of a run.

Where every sample takes the same branch, or the same number of iterations, these stand in the place
of the operator (see `model.inline`), so that everything applies to what is inside. Every command
decides this on all samples that it uses: nothing is found out on some and assumed of others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import onnx
from onnx import TensorProto, helper

from qdebug.backends.base import Session
from qdebug.backends.options import SessionSettings
from qdebug.backends.sizing import parallelism
from qdebug.backends.stream import map_in_order
from qdebug.execute.context import Context, simulation_context
from qdebug.network.codes import check_formats
from qdebug.network.graph import Graph, reads_of
from qdebug.network.inline import ELSE, MOST_ITERATIONS, THEN, Taken, body_of, fits, is_control_flow
from qdebug.network.load import read_model
from qdebug.network.prepare import Model, prepare_model, replaced, with_taken
from qdebug.network.samples import Batch, Samples
from qdebug.network.samplespec import SampleSpec
from qdebug.network.subgraphs import all_names, bodies, free_name, size_of
from qdebug.plan.rewrite.edit import make_node
from qdebug.types import Array, Progress, ProgressCallback, Tensors, ignore_progress
from qdebug.wording import counted

MOST_NODES = 4000
"""A Loop or Scan of more nodes in all of its iterations is not unrolled."""
_SHOWN = 5
_SPLIT = (
    " Split the samples by the branch or the number of iterations that they take, and run each "
    "group by itself."
)


def open_model(
    path: str,
    opset: int,
    sources: Sequence[SampleSpec],
    sessions: SessionSettings,
    progress: ProgressCallback = ignore_progress,
) -> Model:
    """The model at `path`, prepared, with what the samples of all `sources` take in the place of
    its If, Loop and Scan; `Model.notes` says which.

    Raises:
        QdebugError: it or the samples cannot be read, or do not fit each other.
    """
    model = prepare_model(read_model(path), opset)
    check_formats(path, model.graph)
    if not sources or not any(map(is_control_flow, model.graph.proto.graph.node)):
        return model
    samples = [source.open(model.graph.inputs) for source in sources]
    return _followed(model, samples, simulation_context(parallelism(), progress, sessions))


def _followed(model: Model, samples: Sequence[Samples], context: Context) -> Model:
    taken: dict[str, str | int] = {}
    left: dict[str, str] = {}
    inside, disagree = 0, False
    operators: dict[str, str] = {}
    while True:
        graph = Graph(replaced(model, taken)[0])
        nodes = [
            node
            for node in graph.proto.graph.node
            if is_control_flow(node) and node.name not in left
        ]
        for node in nodes:
            if not fits(node):  # ONNX Runtime will refuse the model, and says why
                left[node.name], operators[node.name] = "it does not fit its body", node.op_type
        nodes = [node for node in nodes if node.name not in left]
        if not nodes:
            break
        seen = _seen(context, graph, nodes, samples)
        for node in nodes:
            operators[node.name] = node.op_type
            why = _why_left(node, seen[node.name])
            if why:
                left[node.name] = why
                disagree |= len(seen[node.name]) > 1
                inside += sum(map(size_of, bodies(node)))
            else:
                (taken[node.name],) = seen[node.name]
    count = sum(s.count for s in samples)
    notes = (
        *_taken_notes(taken, operators, count),
        *_left_notes(left, operators, inside, disagree),
    )
    return replace(with_taken(model, taken), notes=notes) if taken else replace(model, notes=notes)


def _why_left(node: onnx.NodeProto, seen: Mapping[str | int, int]) -> str:
    """Why an operator stays as it is; "" where it can be replaced.

    Args:
        seen: what it did -> in how many executions.
    """
    if any(body.sparse_initializer for body in bodies(node)):
        return "it has sparse constants"
    if len(seen) > 1 and node.op_type == "If":
        total = sum(seen.values())
        return (
            f"{seen[THEN]} of {total} executions take its then_branch, the others its else_branch"
        )
    iterations = sorted(n for n in seen if isinstance(n, int))
    if len(iterations) > 1:
        return f"it takes {iterations[0]} to {iterations[-1]} iterations"
    if iterations == [0]:
        return "it takes no iteration"
    for count in iterations:
        nodes = count * size_of(body_of(node, count))
        if count > MOST_ITERATIONS or nodes > MOST_NODES:
            return f"its {count} iterations would be {nodes} nodes"
    return ""


def _seen(
    context: Context, graph: Graph, nodes: Sequence[onnx.NodeProto], samples: Sequence[Samples]
) -> dict[str, Counter[str | int]]:
    """What each of `nodes` does -> in how many executions."""
    proto, watched = _probe(graph, nodes)
    found: dict[str, Counter[str | int]] = {node.name: Counter() for node in nodes}
    session = context.backend.open(proto, [tensor for tensor, _ in watched.values()])
    try:
        done, total = 0, sum(s.count for s in samples)
        for one in samples:
            batches = list(one.batches())
            results = map_in_order(
                partial(_executed, session, one), batches, context.parallel.workers
            )
            for batch, tensors in zip(batches, results, strict=True):
                for name, (tensor, meaning) in watched.items():
                    found[name][meaning(tensors[tensor])] += 1
                done += batch.count
                context.progress(Progress("branches", done, total))
    finally:
        session.close()
    return found


def _executed(session: Session, samples: Samples, batch: Batch) -> Tensors:
    return session.run(samples.feeds(batch.start, batch.count))


_Watched = tuple[str, Callable[[Array], str | int]]
"""A tensor, and what its value says that an operator does."""


def _probe(
    graph: Graph, nodes: Sequence[onnx.NodeProto]
) -> tuple[onnx.ModelProto, dict[str, _Watched]]:
    """A model without outputs, with nothing but what tells what `nodes` do; and which tensors tell
    it, by node."""
    names = all_names(graph.proto.graph)[0]
    watched: dict[str, _Watched] = {}
    given = {node.name: node for node in graph.proto.graph.node}
    added: list[onnx.NodeProto] = []
    for node in nodes:
        if node.op_type == "If":
            tensor = free_name(f"{node.name}_condition", names)
            added.append(make_node("Identity", [node.input[0]], tensor))
            watched[node.name] = tensor, _branch
        elif node.op_type == "Loop":
            tensor = free_name(f"{node.name}_count", names)
            given[node.name] = _counting(node, tensor, names)
            watched[node.name] = tensor, _length
        else:
            tensor = free_name(f"{node.name}_shape", names)
            first, axis = _scanned(node)
            added.append(make_node("Shape", [first], tensor))
            watched[node.name] = tensor, partial(_at, axis)
    wanted = {tensor for tensor, _ in watched.values()}
    kept = []
    for proto in reversed([*given.values(), *added]):
        if not wanted.isdisjoint(proto.output):
            wanted.update(reads_of(proto))
            kept.append(proto)
    probe = onnx.ModelProto(
        ir_version=graph.proto.ir_version, opset_import=graph.proto.opset_import
    )
    probe.graph.name = "control_flow"
    probe.graph.node.extend(reversed(kept))
    probe.graph.input.extend(graph.proto.graph.input)
    probe.graph.initializer.extend(t for t in graph.proto.graph.initializer if t.name in wanted)
    return probe, watched


def _counting(node: onnx.NodeProto, output: str, taken: set[str]) -> onnx.NodeProto:
    """A Loop that also stacks the numbers of its iterations, as `output`; adds to `taken` names."""
    counting = onnx.NodeProto()
    counting.CopyFrom(node)
    body = next(a.g for a in counting.attribute if a.name == "body")
    left_out = len(body.output) - 1 - len(counting.output)
    counting.output.extend(free_name(f"{output}_unread", taken) for _ in range(left_out))
    inside = free_name(f"{output}_inside", taken)
    counting.output.append(output)
    body.node.append(make_node("Identity", [body.input[0].name], inside))
    shape = [d.dim_value for d in body.input[0].type.tensor_type.shape.dim]
    body.output.append(helper.make_tensor_value_info(inside, TensorProto.INT64, shape))
    return counting


def _scanned(node: onnx.NodeProto) -> tuple[str, int]:
    """The first tensor that a Scan goes through, and along which axis."""
    how = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    first = node.input[len(node.input) - how["num_scan_inputs"]]
    return first, how.get("scan_input_axes", [0])[0]


def _branch(condition: Array) -> str:
    return THEN if bool(condition.reshape(-1)[0]) else ELSE


def _length(stacked: Array) -> int:
    return len(stacked)


def _at(axis: int, shape: Array) -> int:
    return int(shape[axis]) if -len(shape) <= axis < len(shape) else 0


def _taken_notes(taken: Taken, operators: Mapping[str, str], samples: int) -> Iterator[str]:
    branches = [f"'{name}' ({what})" for name, what in taken.items() if isinstance(what, str)]
    counts = [
        f"{operators[name]} '{name}' ({counted(what, 'iteration')})"
        for name, what in taken.items()
        if isinstance(what, int)
    ]
    who = f"all {samples} samples take" if samples > 1 else "the only sample takes"
    if branches:
        ifs = "1 If was" if len(branches) == 1 else f"{len(branches)} Ifs were each"
        yield (
            f"{ifs} replaced by the branch that {who}: {_listed(branches)}. Results and exports "
            "hold only for inputs that take the same branch."
        )
    if counts:
        yield (
            f"Unrolled into the iterations that {who}: {_listed(counts)}. The names of the nodes "
            "inside end in _iter0, _iter1, …"
        )


def _left_notes(
    left: Mapping[str, str], operators: Mapping[str, str], inside: int, disagree: bool
) -> Iterator[str]:
    if left:
        shown = [f"{operators[name]} '{name}' ({why})" for name, why in left.items()]
        yield (
            f"Not looked into: {_listed(shown)}. The {counted(inside, 'node')} inside are neither "
            "observed nor quantized." + (_SPLIT if disagree else "")
        )


def _listed(items: Sequence[str]) -> str:
    more = len(items) - _SHOWN
    return ", ".join(items[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
