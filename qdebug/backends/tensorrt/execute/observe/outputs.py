"""Observe tensors as outputs of the engine, in as many engines as it takes."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from typing import TypeVar

import onnx
from onnx import TensorProto, helper

from qdebug.backends.base import Session
from qdebug.backends.sizing import capture_groups
from qdebug.backends.tensorrt.execute.cuda import DeviceMemoryError
from qdebug.backends.tensorrt.execute.session import TensorRTSession
from qdebug.backends.tensorrt.factory import EngineFactory, probe_feeds
from qdebug.errors import BackendError, ModelError
from qdebug.network.graph import Graph
from qdebug.types import Array, Feeds, Skipped, Tensors


def open_with_outputs(
    maker: EngineFactory,
    proto: onnx.ModelProto,
    wanted: Sequence[str],
    absent: Sequence[Skipped],
    group_bytes: int | None,
) -> Session:
    """A session whose engines have `wanted` as outputs, at most `group_bytes` of them each.

    Each engine runs once on noise, in the largest shapes, to find out whether there is room for it.
    """
    sizes: Mapping[str, int] = {}
    if group_bytes is not None:
        largest = {name: r.max for name, r in (maker.settings.profile or {}).items()}
        sizes = sizes_for(proto, largest)

    opened: list[TensorRTSession] = []

    def build(group: Sequence[str]) -> TensorRTSession:
        session = with_room(lambda: attempt(group), opened)
        opened.append(session)
        return session

    def attempt(group: Sequence[str]) -> TensorRTSession:
        engine, unmarked = maker.make(proto, outputs=group)
        session = TensorRTSession(engine, skipped=unmarked)
        try:
            session.run(probe_feeds(engine))
        except BaseException:
            session.close()
            raise
        return session

    sessions, guilty = build_groups(groups_within(wanted, sizes, group_bytes), build)
    return GroupedSession(sessions or [build(())], [*absent, *guilty])


BuiltT = TypeVar("BuiltT")


def groups_within(
    tensors: Sequence[str], sizes: Mapping[str, int], budget_bytes: int | None
) -> list[list[str]]:
    """`tensors` in order, in groups of at most `budget_bytes`; a larger tensor is a group alone.

    A tensor of unknown size counts as the largest that is known.
    """
    if budget_bytes is None:
        return [list(tensors)] if tensors else []
    unknown = max((sizes[t] for t in tensors if t in sizes), default=0)
    return capture_groups(tensors, {t: sizes.get(t, unknown) for t in tensors}, budget_bytes)


def build_groups(
    groups: Sequence[Sequence[str]], build: Callable[[Sequence[str]], BuiltT]
) -> tuple[list[BuiltT], tuple[Skipped, ...]]:
    """What `build` makes of each group. One that fails is halved until the tensors at fault are
    known; they are left out, and the rest is built.

    Args:
        build: also called with no tensor, once, when a group fails: what fails without any is not
            a tensor's fault.

    Raises:
        ModelError, BackendError: `build` fails with no tensor.
    """
    built: list[BuiltT] = []
    skipped: list[Skipped] = []
    pending = [list(group) for group in reversed(groups)]
    blameless = False
    while pending:
        group = pending.pop()
        try:
            built.append(build(group))
        except (BackendError, ModelError) as error:
            if not blameless:
                build(())
                blameless = True
            if len(group) == 1:
                skipped.append(Skipped(group[0], f"as an output, {error.message}"))
            else:
                half = len(group) // 2
                pending += [group[half:], group[:half]]
    return built, tuple(skipped)


ResultT = TypeVar("ResultT")


def with_room(work: Callable[[], ResultT], others: Sequence[TensorRTSession]) -> ResultT:
    """What `work` gives; where the GPU has no memory for it, called again once `others` have freed
    theirs.

    Raises:
        DeviceMemoryError: that does not suffice.
    """
    try:
        return work()
    except DeviceMemoryError:
        for session in others:
            session.release()
    return work()


class GroupedSession:
    """See Session. The model's own outputs are those of the first engine.

    Its engines run one at a time, so that each may take the memory of the others.
    """

    def __init__(
        self, sessions: Sequence[TensorRTSession], skipped: Sequence[Skipped] = ()
    ) -> None:
        """Becomes the owner of `sessions`, of which there is at least one."""
        self._sessions = tuple(sessions)
        self._turn = threading.Lock()
        self.dtypes = {n: t for s in reversed(sessions) for n, t in s.dtypes.items()}
        every = [*skipped, *(x for s in sessions for x in s.skipped)]
        self.skipped = tuple({x.tensor: x for x in every}.values())

    def run(self, feeds: Feeds) -> Tensors:
        """See Session.run."""
        found: dict[str, Array] = {}
        with self._turn if len(self._sessions) > 1 else nullcontext():
            for session in self._sessions:
                others = [s for s in self._sessions if s is not session]
                found = {**with_room(partial(session.run, feeds), others), **found}
        return found

    def close(self) -> None:
        """See Session.close."""
        for session in self._sessions:
            session.close()


Shape = tuple[int, ...]


def shapes_for(proto: onnx.ModelProto, inputs: Mapping[str, Shape]) -> dict[str, Shape]:
    """The shape of every tensor that is known when the inputs have these shapes."""
    fixed = deepcopy(proto)
    del fixed.graph.value_info[:]
    for value in fixed.graph.input:
        if value.name in inputs:
            kind = value.type.tensor_type.elem_type
            shape = inputs[value.name]
            value.CopyFrom(helper.make_tensor_value_info(value.name, kind, shape))
    for value in fixed.graph.output:  # a declared symbol would win over what is inferred
        value.type.tensor_type.ClearField("shape")
    graph = Graph(onnx.shape_inference.infer_shapes(fixed, data_prop=True))
    return {
        name: tuple(int(axis) for axis in shape if isinstance(axis, int))
        for name, shape in graph.shapes.items()
        if all(isinstance(axis, int) for axis in shape)
    }


def sizes_for(proto: onnx.ModelProto, inputs: Mapping[str, Shape]) -> dict[str, int]:
    """The bytes of every tensor whose shape and type are known. See `shapes_for`."""
    types = Graph(onnx.shape_inference.infer_shapes(proto)).types
    return {
        name: math.prod(shape) * _item_bytes(types[name])
        for name, shape in shapes_for(proto, inputs).items()
        if name in types
    }


def _item_bytes(kind: int) -> int:
    if kind == TensorProto.STRING:
        return 8
    return int(helper.tensor_dtype_to_np_dtype(kind).itemsize)
