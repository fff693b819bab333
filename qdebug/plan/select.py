"""Layers that the user names: by name, by pattern or by operator."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable

from qdebug.errors import PlanError
from qdebug.model.layers import Layer, Layers
from qdebug.model.prepare import Model
from qdebug.plan.plan import layer_aliases, nearest

OPERATOR = "op:"


def select_layers(
    wanted: Iterable[str], model: Model, layers: Layers, flag: str
) -> tuple[Layer, ...]:
    """The layers that `wanted` names, in execution order.

    Each is the name of a layer or of one of its nodes, `op:TYPE`, or a pattern with * and ?, which
    is matched against all these names. A name that exists is never taken for a pattern.

    Raises:
        PlanError: it names no layer; the message holds `flag` and the nearest name.
    """
    aliases = layer_aliases(model, layers)
    found: set[str] = set()
    for text in wanted:
        found |= _matching(text, aliases, layers, flag)
    return tuple(layer for layer in layers if layer.name in found)


def _matching(text: str, aliases: dict[str, Layer], layers: Layers, flag: str) -> set[str]:
    if text in aliases:
        return {aliases[text].name}
    if text.startswith(OPERATOR):
        operator = text.removeprefix(OPERATOR)
        names = {layer.name for layer in layers if layer.op_type == operator}
        if not names:
            known = sorted({layer.op_type for layer in layers})
            close = difflib.get_close_matches(operator, known, n=1, cutoff=0.0)
            hint = f"Did you mean '{OPERATOR}{close[0]}'? " if close else ""
            raise PlanError(
                f"{flag}: the model has no layer of operator '{operator}'",
                f"{hint}It has {', '.join(known)}.",
            )
        return names
    if "*" in text or "?" in text:
        # Brackets are part of many names: they are no character class here.
        pattern = re.compile(fnmatch.translate(text.replace("[", "[[]")))
        names = {layer.name for name, layer in aliases.items() if pattern.match(name)}
        if not names:
            raise PlanError(f"{flag}: no layer matches '{text}'", nearest(text, aliases))
        return names
    raise PlanError(f"{flag}: the model has no layer '{text}'", nearest(text, aliases))
