"""Tensors that were read from the wrong place of an engine: what is computed from them says so.

An engine that is asked for a tensor inside it may give another one, such as the state before the
last step of an LSTM. So each tensor that is far from the simulation is tried on the tensors that
are computed from it: where what was read does not explain those, and the simulation's tensor does,
it was not observed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper

from qdebug.backends.base import Session
from qdebug.execute.engine.observe import CHECKED_BATCHES, EngineJob, Observed
from qdebug.metrics.sums import ErrorSums
from qdebug.metrics.tensor import sqnr_of
from qdebug.network.graph import Graph
from qdebug.results.observation import add_errors
from qdebug.types import Array, Feeds, Skipped, Tensors

SUSPECT_DB = 20.0
"""Under this SQNR, engine against simulation, a tensor is tried on what is computed from it."""

CLEARLY_DB = 10.0
"""By how much the simulation's tensor must explain what was computed better than the one read."""

EXPLAINED_DB = 40.0
"""From this SQNR on, what was read explains what was computed from it."""


def without_contradicted(
    job: EngineJob, graph: Graph, simulation: Session, observed: Observed
) -> Observed:
    """`observed` without the tensors that contradict what is computed from them; those are skipped.

    Args:
        graph: the model that `simulation` executes; the engine has the same tensors.

    Raises:
        QdebugError: a model that cannot be run.
    """
    few = range(min(CHECKED_BATCHES, len(job.subset.batches)))
    batches = [_executed(job, simulation, observed.session, k) for k in few]
    likeness = _likeness(batches)
    read = {t: db for t, db in likeness.items() if t not in graph.outputs}
    suspects = [t for t, db in read.items() if not db >= SUSPECT_DB]
    found = {}
    for tensor in suspects:
        for witness in _witnesses(graph, tensor, likeness):
            if _contradicts(job, graph, batches, suspects, tensor, witness):
                found[tensor] = witness
                break
    if not found:
        return observed
    skipped = tuple(
        Skipped(t, f"what was read as it contradicts '{w}', which is computed from it")
        for t, w in found.items()
    )
    *others, last = observed.checks
    last = replace(last, observed=last.observed - len(found))
    return replace(observed, session=_Partial(observed.session, skipped), checks=(*others, last))


@dataclass(frozen=True)
class _Executed:
    """One batch, by the names of the lowered model."""

    feeds: Feeds
    simulated: Tensors
    read: Tensors


def _executed(job: EngineJob, simulation: Session, engine: Session, number: int) -> _Executed:
    feeds = job.feeds(job.subset.batches[number])
    return _Executed(feeds, simulation.run(feeds), engine.run(feeds))


def _likeness(batches: Sequence[_Executed]) -> dict[str, float]:
    """The SQNR of what was read against the simulation, by tensor that both have; NaN where only
    one side is finite."""
    totals: dict[str, ErrorSums] = {}
    for one in batches:
        add_errors(totals, one.simulated, one.read)
    return {tensor: sqnr_of(sums) for tensor, sums in totals.items()}


def _witnesses(graph: Graph, tensor: str, likeness: Mapping[str, float]) -> Iterator[str]:
    """The next observed tensors that are computed from `tensor`, as far as they are clearly nearer
    to the simulation than it is."""
    waiting, seen = [tensor], {tensor}
    while waiting:
        for node in graph.consumers.get(waiting.pop(), ()):
            for output in node.outputs:
                if not output or output in seen:
                    continue
                seen.add(output)
                if output not in likeness:
                    waiting.append(output)
                elif _clearly(likeness[output], likeness[tensor]):
                    yield output


def _clearly(better: float, worse: float) -> bool:
    if math.isnan(better):
        return False
    return math.isnan(worse) or better >= worse + CLEARLY_DB


def _contradicts(
    job: EngineJob,
    graph: Graph,
    batches: Sequence[_Executed],
    suspects: Sequence[str],
    tensor: str,
    witness: str,
) -> bool:
    """Whether what was read does not explain `witness`, the simulation's suspects in its place do,
    and with `tensor` as it was read they do not. An error that two tensors share, and that cancels
    in what is computed from them, is one of the engine."""
    part = _part(graph, witness, batches[0])
    if part is None:
        return False
    inputs = [v.name for v in part.graph.input]
    doubted = {t for t in suspects if t in inputs}
    trials = {"read": set[str](), "simulated": doubted, "but this": doubted - {tensor}}
    errors: dict[str, dict[str, ErrorSums]] = {name: {} for name in trials}
    session = job.context.simulation.open(part, [])
    try:
        for one in batches:
            for name, replaced in trials.items():
                feeds = {t: one.simulated[t] if t in replaced else _fed(one, t) for t in inputs}
                add_errors(errors[name], {witness: one.read[witness]}, session.run(feeds))
    finally:
        session.close()
    if witness not in errors["read"]:
        return False
    read, simulated, this = (sqnr_of(found[witness]) for found in errors.values())
    if read >= EXPLAINED_DB:
        return False
    return _clearly(simulated, read) and _clearly(simulated, this)


def _fed(one: _Executed, name: str) -> Array:
    """What was read as a tensor, in the type that the model has it in."""
    if name in one.read:
        return one.read[name].astype(one.simulated[name].dtype, copy=False)
    return np.asarray(one.feeds[name])


def _part(graph: Graph, output: str, sample: _Executed) -> onnx.ModelProto | None:
    """The nodes that compute `output` from what was read and from the inputs; None where what they
    read is no tensor of this graph."""
    known = {t for t in sample.read if t in sample.simulated and t != output}
    nodes: set[str] = set()
    inputs: dict[str, Array] = {}
    waiting, seen = [output], {output}
    while waiting:
        tensor = waiting.pop()
        producer = graph.producers.get(tensor)
        if tensor in known:
            inputs[tensor] = sample.simulated[tensor]
        elif tensor in sample.feeds and producer is None:
            inputs[tensor] = np.asarray(sample.feeds[tensor])
        elif producer is not None:
            nodes.add(producer.name)
            waiting += [t for t in producer.reads if t not in seen]
            seen.update(producer.reads)
        elif tensor not in graph.initializers:
            return None
    part = deepcopy(graph.proto)
    for field in ("node", "input", "output", "value_info", "initializer"):
        part.graph.ClearField(field)
    part.graph.node.extend(n for n in graph.proto.graph.node if n.name in nodes)
    read = {t for name in nodes for t in graph.by_name[name].reads}
    part.graph.initializer.extend(t for t in graph.proto.graph.initializer if t.name in read)
    part.graph.input.extend(
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim
        )
        for name, array in inputs.items()
    )
    kind = helper.np_dtype_to_tensor_dtype(sample.simulated[output].dtype)
    part.graph.output.append(helper.make_tensor_value_info(output, kind, None))
    return part


class _Partial:
    """See Session. A session without some of its tensors."""

    def __init__(self, session: Session, hidden: Sequence[Skipped]) -> None:
        """Becomes the owner of `session`."""
        self._session = session
        self._hidden = frozenset(s.tensor for s in hidden)
        self.dtypes = {t: d for t, d in session.dtypes.items() if t not in self._hidden}
        self.skipped = (*session.skipped, *hidden)

    def run(self, feeds: Feeds) -> Tensors:
        """See Session.run."""
        found = self._session.run(feeds)
        return {t: array for t, array in found.items() if t not in self._hidden}

    def close(self) -> None:
        """See Session.close."""
        self._session.close()
