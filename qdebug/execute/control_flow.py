"""Open a model, and find out which branch its Ifs take on all samples of a run.

Where every sample takes the same branch, that stands in the place of the If (`network.inline`), so
that everything applies to what is inside. Every command decides this on all samples that it uses:
nothing is found out on some and assumed of others. A Loop or a Scan runs in FP32 as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import onnx

from qdebug.backends.options import SessionSettings
from qdebug.backends.sizing import parallelism
from qdebug.execute.context import Context, runner_of, simulation_context
from qdebug.execute.preparation import checked, is_folded
from qdebug.memo import digest_of
from qdebug.metrics.accumulate import REFERENCE, ExecutedBatch
from qdebug.network.codes import check_formats
from qdebug.network.graph import Graph
from qdebug.network.inline import ELSE, THEN, Taken, fits, is_control_flow
from qdebug.network.load import read_model
from qdebug.network.prepare import Model, prepare_model, with_taken
from qdebug.network.sampleaxis import sample_inputs
from qdebug.network.samples import Samples
from qdebug.network.samples.subset import whole
from qdebug.network.samplespec import SampleSpec
from qdebug.network.subgraphs import all_names, bodies, free_name, needed, reads_of, size_of
from qdebug.plan.rewrite.edit import make_node
from qdebug.run.variant import as_it_is
from qdebug.types import Array, ProgressCallback, ignore_progress
from qdebug.wording import counted

_SHOWN = 5
_SPLIT = " Split the samples by the branch that they take, and run each group by itself."


def open_model(
    path: str,
    opset: int,
    sources: Sequence[SampleSpec],
    sessions: SessionSettings,
    progress: ProgressCallback = ignore_progress,
) -> Model:
    """The model at `path`, prepared, with the branches that the samples of all `sources` take
    in the place of its Ifs; `Model.notes` says which, and where what was prepared computes
    something else than the file.

    Raises:
        QdebugError: it or the samples cannot be read, or do not fit each other.
    """
    shapes = next((source.shapes for source in sources), ())
    model = prepare_model(read_model(path), opset, shapes)
    check_formats(path, model.graph)
    branches = any(map(is_control_flow, model.graph.proto.graph.node))
    if not sources or not (branches or is_folded(model)):
        return model
    context = simulation_context(parallelism(), progress, sessions)
    read = sources if branches else sources[:1]
    samples = [source.open(sample_inputs(model.graph)) for source in read]
    if is_folded(model):
        model = checked(model, samples[0], context)
    return _followed(model, samples, context) if branches else model


def _followed(model: Model, samples: Sequence[Samples], context: Context) -> Model:
    taken: dict[str, str] = {}
    left: dict[str, str] = {}
    inside, disagree = 0, False
    operators: dict[str, str] = {}
    while True:
        graph = with_taken(model, taken).graph
        nodes = [
            node
            for node in graph.proto.graph.node
            if is_control_flow(node) and node.name not in left
        ]
        for node in nodes:
            operators[node.name] = node.op_type
            if node.op_type != "If":
                left[node.name] = "it runs in FP32 as it is"
                inside += sum(map(size_of, bodies(node)))
            elif not fits(node):  # ONNX Runtime will refuse the model, and says why
                left[node.name] = "it does not fit its branches"
        nodes = [node for node in nodes if node.name not in left]
        if not nodes:
            break
        seen = _seen(context, graph, nodes, samples)
        for node in nodes:
            why = _why_left(node, seen[node.name])
            if why:
                left[node.name] = why
                disagree |= len(seen[node.name]) > 1
                inside += sum(map(size_of, bodies(node)))
            else:
                (taken[node.name],) = seen[node.name]
    count = sum(s.count for s in samples)
    notes = (
        *model.notes,
        *_taken_notes(taken, count),
        *_left_notes(left, operators, inside, disagree),
    )
    return replace(with_taken(model, taken), notes=notes) if taken else replace(model, notes=notes)


def _why_left(node: onnx.NodeProto, seen: Mapping[str, int]) -> str:
    """Why an If stays as it is; "" where a branch can take its place.

    Args:
        seen: the branch that it took -> in how many executions.
    """
    if any(body.sparse_initializer for body in bodies(node)):
        return "it has sparse constants"
    if len(seen) > 1:
        total = sum(seen.values())
        return (
            f"{seen[THEN]} of {total} executions take its then_branch, the others its else_branch"
        )
    return ""


def _seen(
    context: Context, graph: Graph, nodes: Sequence[onnx.NodeProto], samples: Sequence[Samples]
) -> dict[str, Counter[str]]:
    """The branch that each of `nodes` takes -> in how many executions."""
    proto, watched = _probe(graph, nodes)
    variants = {REFERENCE: as_it_is(proto, context.backend, watched)}
    branches = _Branches(tuple(watched))
    runs = [
        runner_of(context, whole(one)).run(variants, {"": branches}, "branches")[""]
        for one in samples
    ]
    return reduce(branches.merge, runs)


@dataclass(frozen=True)
class _Branches:
    """The branch that each node takes, by what its condition is captured as: its name. See
    Reducer."""

    nodes: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """See Reducer."""
        return (REFERENCE,)

    @property
    def key(self) -> str:
        """See Reducer."""
        return digest_of("branches", self.nodes)

    def reduce(self, executed: ExecutedBatch) -> dict[str, Counter[str]]:
        """See Reducer."""
        return {name: Counter([_branch(executed.reference[name])]) for name in self.nodes}

    def merge(
        self, before: dict[str, Counter[str]], after: dict[str, Counter[str]]
    ) -> dict[str, Counter[str]]:
        """See Reducer."""
        return {name: before[name] + after[name] for name in self.nodes}


def _probe(graph: Graph, nodes: Sequence[onnx.NodeProto]) -> tuple[onnx.ModelProto, dict[str, str]]:
    """A model without outputs, with nothing but what the conditions of `nodes` follow from; and
    the tensor that is the condition, by node."""
    names = all_names(graph.proto.graph)[0]
    watched = {node.name: free_name(f"{node.name}_condition", names) for node in nodes}
    added = [make_node("Identity", [n.input[0]], watched[n.name]) for n in nodes]
    kept = needed([*graph.proto.graph.node, *added], watched.values())
    read = {t for node in kept for t in reads_of(node)}
    probe = onnx.ModelProto(
        ir_version=graph.proto.ir_version, opset_import=graph.proto.opset_import
    )
    probe.graph.name = "control_flow"
    probe.graph.node.extend(kept)
    probe.graph.input.extend(graph.proto.graph.input)
    probe.graph.initializer.extend(t for t in graph.proto.graph.initializer if t.name in read)
    return probe, watched


def _branch(condition: Array) -> str:
    return THEN if bool(condition.reshape(-1)[0]) else ELSE


def _taken_notes(taken: Taken, samples: int) -> Iterator[str]:
    if taken:
        branches = [f"'{name}' ({branch})" for name, branch in taken.items()]
        who = f"all {samples} samples take" if samples > 1 else "the only sample takes"
        ifs = "1 If was" if len(branches) == 1 else f"{len(branches)} Ifs were each"
        yield (
            f"{ifs} replaced by the branch that {who}: {_listed(branches)}. Results and exports "
            "hold only for inputs that take the same branch."
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
