"""Tensors in groups that fit, and the guilty ones of a group that cannot be built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from qdebug.errors import BackendError, ModelError
from qdebug.types import Skipped

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
    groups: list[list[str]] = []
    room = 0
    for tensor in tensors:
        size = sizes.get(tensor, unknown)
        if not groups or size > room:
            groups.append([])
            room = budget_bytes
        groups[-1].append(tensor)
        room -= size
    return groups


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
                _discard(build(()))
                blameless = True
            if len(group) == 1:
                skipped.append(Skipped(group[0], f"as an output, {error.message}"))
            else:
                half = len(group) // 2
                pending += [group[half:], group[:half]]
    return built, tuple(skipped)


def _discard(built: object) -> None:
    close = getattr(built, "close", None)
    if close is not None:
        close()
