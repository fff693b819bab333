"""Candidates that differ from the planned model, or the user's, in which layers compute high."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import onnx

from qdebug.backends.base import Session
from qdebug.backends.fp16_emulation.rounding import mentions_narrow
from qdebug.backends.ort_fast.assemble import Assembled, Assembler
from qdebug.backends.ort_fast.leave_out import REST, LeaveOutAssembler
from qdebug.backends.ort_fast.prefix_cache import PrefixCache, ResumedSession
from qdebug.backends.ort_fast.session import PartSessions
from qdebug.errors import BackendError, ModelError
from qdebug.execute.context import Context
from qdebug.formats.registry import SCALED
from qdebug.network.weights import tensor_of
from qdebug.plan.lower import lower
from qdebug.plan.pair import ModelPair
from qdebug.plan.plan import BoundPlan, bind_plan
from qdebug.plan.quantize import ROUNDING_INSIDE
from qdebug.plan.rewrite.unround import unrounded
from qdebug.types import Feeds, Precision, Tensors
from qdebug.wording import counted

High = frozenset[str]
"""The layers of one candidate that compute in FP32."""
Opened = Session | ResumedSession


class SwitchedSession:
    """One session of candidates that differ from a first in one layer each, which a switch turns.
    The first that runs opens it, the last that is done closes it; from several threads if need be.
    """

    def __init__(
        self, assemble: Callable[[], Assembled], prefixes: PrefixCache, layers: Mapping[High, str]
    ) -> None:
        """`assemble` gives the first with switches of `layers`, in which the candidates differ."""
        self._assemble, self._prefixes, self._layers = assemble, prefixes, layers
        self._switches: Mapping[str, str] = {}
        self._left = set(layers)
        self._session: ResumedSession | None = None
        self._failed = False
        self._lock = threading.Lock()

    def opens(self) -> bool:
        """Whether the runtime takes it: else candidates must be opened one by one."""
        with self._lock:
            if self._session is None and not self._failed:
                try:
                    assembled = self._assemble()
                    self._session = self._prefixes.open(assembled, keep=False)
                    self._switches = assembled.switches
                except (ModelError, BackendError):
                    self._failed = True
            return not self._failed

    def run(self, high: High, number: int, feeds: Feeds) -> Tensors:
        """The outputs of one of the candidates for the batch of that number."""
        assert self._session is not None
        turned = self._layers[high]
        switches = {name: np.array(x == turned) for x, name in self._switches.items()}
        return self._session.run(number, {**feeds, **switches})

    def done(self, high: High) -> None:
        """That candidate runs no more."""
        with self._lock:
            self._left.discard(high)
            if not self._left and self._session is not None:
                self._session.close()
                self._session = None


class Candidates:
    """Opens candidates; from several threads if need be.

    Where they are assembled from parts, one starts behind the layers that it shares with the first.

    Attributes:
        names: the layers that may be in FP32 or not, in execution order.
        everything: the candidate without any rounding.
        notes: what the reader of a result must know.
        on_kernels: whether layers that may compute on INT8 kernels: else as they are written down.
    """

    def __init__(
        self,
        names: Sequence[str],
        everything: High,
        sessions: PartSessions,
        assemble: Callable[[High, Sequence[str]], Assembled] | None,
        segments: Callable[[], Mapping[str, int]],
        open_whole: Callable[[High], Session],
        notes: tuple[str, ...] = (),
        *,
        on_kernels: bool = False,
    ) -> None:
        """`assemble` makes candidates from parts, which `sessions` open, the layers of its second
        argument with a switch; where that is not possible, it is None, and `open_whole` opens
        them. `segments` gives the number of places to start from before each layer."""
        self.names, self.everything, self.notes = tuple(names), everything, notes
        self.on_kernels = on_kernels
        self._sessions = sessions
        self._assemble, self._segments, self._open_whole = assemble, segments, open_whole

    def prefixes(self, cache_bytes: int) -> PrefixCache | None:
        """A cache for candidates on some samples; None where all start at their inputs."""
        return PrefixCache(self._sessions, cache_bytes) if self._assemble else None

    def open(self, high: High) -> Session:
        """The candidate with the layers `high` in FP32, which starts at its inputs: on INT8 kernels
        where these are.

        Raises:
            ModelError, BackendError: the runtime does not take it.
        """
        if self._assemble is None:
            return self._open_whole(high)
        return self._sessions.open_part(self._assemble(high, ()), None, ())

    def resumed(self, high: High, prefixes: PrefixCache | None, *, keep: bool) -> Opened:
        """The same, started from activations that are kept, if any; `keep`: others may start from
        it. Raises as `open`."""
        if prefixes is not None and self._assemble is not None:
            return prefixes.open(self._assemble(high, ()), keep=keep)
        return self.open(high)

    def switched(
        self, base: High, sets: Sequence[High], prefixes: PrefixCache | None
    ) -> dict[High, SwitchedSession]:
        """Of those candidates in `sets` that differ from `base` in one layer, sessions that several
        of them share. Opening one takes as long as running a few samples."""
        if prefixes is None or self._assemble is None:
            return {}
        found: dict[High, SwitchedSession] = {}
        for group in self.groups(base, sets):
            if len(group) > 1:
                assemble = partial(self._assemble, base, tuple(group.values()))
                found |= dict.fromkeys(group, SwitchedSession(assemble, prefixes, group))
        return found

    def groups(self, base: High, sets: Sequence[High]) -> list[dict[High, str]]:
        """Of those candidates in `sets` that differ from `base` in one layer, with that layer,
        those that can share a session. What one gives depends, in the last bits, on with whom.
        None share one on INT8 kernels, which have no switch."""
        if self._assemble is None or self.on_kernels:
            return []
        segments = self._segments()
        groups: dict[int, dict[High, str]] = {}
        for high in sets:
            other = sorted(high ^ base)
            if len(other) == 1 and other[0] in segments:
                groups.setdefault(segments[other[0]], {})[high] = other[0]
        return list(groups.values())


def candidates_of(
    context: Context, pair: ModelPair, *, on_kernels: bool = False
) -> Candidates | None:
    """The candidates of a pair; None where no layer can be left out.

    Args:
        on_kernels: on ONNX Runtime's INT8 kernels; then None too where there are none, as in models
            that another tool has quantized. They are two to three times as fast as the model as it
            is written down, and round sums elsewhere: see KernelAgreement.

    Raises:
        PlanError: a rewritten model is not valid.
    """
    if pair.plan is None:
        return None if on_kernels else _of_quantized(context, pair)
    bound = bind_plan(pair.plan, pair.model, pair.layers)
    names = [x.name for x in pair.layers if pair.precisions[x.name] is not Precision.FP32]
    if not names:
        return None
    assembler = Assembler(bound, context.fp16_kernels)
    if on_kernels and not assembler.has_kernels(bound.precisions):
        return None
    return _of_plan(context, bound, names, assembler, on_kernels=on_kernels)


def _of_plan(
    context: Context,
    bound: BoundPlan,
    names: Sequence[str],
    assembler: Assembler,
    *,
    on_kernels: bool,
) -> Candidates:

    def pinned(high: High) -> BoundPlan:
        pins = dict.fromkeys(high, Precision.FP32)
        plan = replace(bound.plan, layers={**bound.plan.layers, **pins})
        return replace(bound, plan=plan, precisions={**bound.precisions, **pins})

    def assemble(high: High, either: Sequence[str]) -> Assembled:
        planned = bound.precisions
        others = {n: planned[n] if n in high else Precision.FP32 for n in either}
        return assembler.assemble(pinned(high).precisions, kernels=on_kernels, others=others)

    def whole(high: High) -> Session:
        return context.simulation.open(lower(pinned(high)).graph.proto, ())

    sessions = PartSessions(assembler.constants, context.parallel.threads, context.sessions)
    takes = assembler.takes(bound.precisions)
    return Candidates(
        names=names,
        everything=frozenset(names),
        sessions=sessions,
        assemble=assemble if takes else None,
        segments=lambda: assembler.segments,
        open_whole=whole,
        on_kernels=on_kernels,
    )


def _of_quantized(context: Context, pair: ModelPair) -> Candidates | None:
    """Of a model that another tool has quantized: a layer in FP32 is one without its rounding."""
    layers = [
        x
        for x in pair.layers
        if pair.precisions[x.name] in SCALED
        and x.output not in pair.refuted
        and x.op_type not in ROUNDING_INSIDE
    ]
    model = unrounded(pair.reference, pair.candidate, layers)
    if not model.layers:
        return None
    assembler = LeaveOutAssembler(model, pair.layers)

    def whole(high: High) -> Session:
        proto = onnx.ModelProto.FromString(assembler.assemble(high).model)
        for tensor in proto.graph.initializer:
            # Constants that sessions are handed; larger ones say where their data lie.
            if tensor.name in assembler.constants:
                tensor.CopyFrom(tensor_of(assembler.constants[tensor.name], tensor.name))
        return context.simulation.open(proto, ())

    sessions = PartSessions(assembler.constants, context.parallel.threads, context.sessions)
    as_a_whole = mentions_narrow(model.graph.proto)
    everything = frozenset({*model.layers, REST})
    return Candidates(
        names=model.layers,
        everything=everything,
        sessions=sessions,
        assemble=None if as_a_whole else assembler.assemble,
        segments=lambda: assembler.segments,
        open_whole=whole,
        notes=_changed_note(model.changed),
    )


def _changed_note(layers: Sequence[str]) -> tuple[str, ...]:
    if not layers:
        return ()
    return (
        f"{counted(layers, 'layer')}, first '{layers[0]}', have other constants than the FP32 "
        "model, not only rounded ones. They stay when a layer is kept in FP32, so its gain is that "
        "of undoing the rounding alone.",
    )
