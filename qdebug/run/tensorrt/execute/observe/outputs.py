"""Observe tensors as outputs of the engine, in as many engines as it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from qdebug.run.base import Session
from qdebug.run.tensorrt.execute.observe.grouped import GroupedSession, with_room
from qdebug.run.tensorrt.execute.observe.groups import build_groups, groups_within
from qdebug.run.tensorrt.execute.observe.shapes import sizes_for
from qdebug.run.tensorrt.execute.session import EngineSession
from qdebug.run.tensorrt.factory import EngineFactory, probe_feeds
from qdebug.types import Skipped


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

    opened: list[EngineSession] = []

    def build(group: Sequence[str]) -> EngineSession:
        session = with_room(lambda: attempt(group), opened)
        opened.append(session)
        return session

    def attempt(group: Sequence[str]) -> EngineSession:
        made = maker.make(proto, outputs=group)
        session = EngineSession(made.engine, skipped=made.skipped)
        try:
            session.run(probe_feeds(made.engine))
        except BaseException:
            session.close()
            raise
        return session

    sessions, guilty = build_groups(groups_within(wanted, sizes, group_bytes), build)
    return GroupedSession(sessions or [build(())], [*absent, *guilty])
