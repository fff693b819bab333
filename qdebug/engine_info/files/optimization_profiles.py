"""An engine's layers by optimization profile: each is listed once for every one of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from qdebug.engine_info.layers import EngineLayer
from qdebug.engine_info.tensors import EngineTensor

_MARK = re.compile(r" \[profile (\d+)\]")
_COMPILED = re.compile(r"_myl(\d+)_\d+$")


def first_profile(layers: Sequence[EngineLayer]) -> tuple[tuple[EngineLayer, ...], tuple[str, ...]]:
    """The layers of the first optimization profile, and a note on the others.

    Those of others bear "[profile 1]" in their own name or in that of a tensor. A compiled kernel
    without belongs to the profile of the others of its number.
    """
    marks = [_profile(layer) for layer in layers]
    if not any(marks):
        return tuple(layers), ()
    graphs = {_graph(layer): mark for layer, mark in zip(layers, marks, strict=True) if mark}
    found: dict[int, list[EngineLayer]] = {}
    for layer, mark in zip(layers, marks, strict=True):
        number = _graph(layer)
        profile = mark or (graphs.get(number, 0) if number else 0)
        found.setdefault(profile, []).append(layer)
    first, *others = (found[profile] for profile in sorted(found))
    differing = sum(not _alike(first, other) for other in others)
    told = f"{differing} of the others differ" if differing else "all are alike"
    return tuple(map(_unmarked, first)), (
        f"The engine has {len(found)} optimization profiles; the layers are those of the first "
        f"({told}).",
    )


def without_mark(name: str) -> str:
    """A name without "[profile 1]"."""
    return _MARK.sub("", name)


def _profile(layer: EngineLayer) -> int:
    names = (layer.name, *(t.name for t in (*layer.inputs, *layer.outputs)))
    return max((int(n) for name in names for n in _MARK.findall(name)), default=0)


def _graph(layer: EngineLayer) -> str:
    found = _COMPILED.search(layer.name)
    return found[1] if found else ""


def _alike(one: Sequence[EngineLayer], other: Sequence[EngineLayer]) -> bool:
    """Whether two profiles have the same layers in the same types."""
    return list(map(_kind, one)) == list(map(_kind, other))


def _kind(layer: EngineLayer) -> tuple[str, ...]:
    types = (t.dtype for t in (*layer.inputs, *layer.outputs))
    stem = _COMPILED.sub("", without_mark(layer.name))
    return (stem, layer.layer_type, layer.tactic, *types)


def _unmarked(layer: EngineLayer) -> EngineLayer:
    return replace(
        layer,
        name=without_mark(layer.name),
        inputs=tuple(map(_tensor, layer.inputs)),
        outputs=tuple(map(_tensor, layer.outputs)),
    )


def _tensor(tensor: EngineTensor) -> EngineTensor:
    return replace(tensor, name=without_mark(tensor.name))
