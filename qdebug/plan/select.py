"""Layers that the user names: by name, by pattern or by operator."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping

from qdebug.errors import PlanError
from qdebug.network.layers import Layer, Layers
from qdebug.network.prepare import Model
from qdebug.wording import option

OPERATOR = "op:"


def select_layers(
    wanted: Iterable[str], model: Model, layers: Layers, setting: str
) -> tuple[Layer, ...]:
    """The layers that `wanted` names, in execution order.

    Each is the name of a layer or of one of its nodes, `op:TYPE`, or a pattern with * and ?, which
    is matched against all these names. A name that exists is never taken for a pattern.

    Raises:
        PlanError: it names no layer; the message holds the `setting` and the nearest name.
    """
    aliases = layer_aliases(model, layers)
    names = {x.name for text in wanted for x in matching_layers(text, aliases, layers, setting)}
    return tuple(layer for layer in layers if layer.name in names)


def matching_layers(
    text: str, aliases: Mapping[str, Layer], layers: Layers, setting: str = ""
) -> list[Layer]:
    """The layers that a name, `op:TYPE` or a pattern stands for, at least one.

    Raises:
        PlanError: there is none; the message begins with the `setting`, if there is one.
    """
    where = f"{option(setting)}: " if setting else ""
    if text in aliases:
        return [aliases[text]]
    if text.startswith(OPERATOR):
        operator = text.removeprefix(OPERATOR)
        chosen = [layer for layer in layers if layer.op_type == operator]
        if not chosen:
            raise PlanError(
                f"{where}the model has no layer of operator '{operator}'",
                _operators_hint(operator, layers),
                code="QD-PLAN-LAYER",
            )
        return chosen
    if "*" in text or "?" in text:
        # Brackets are part of many names: they do not start a character class here.
        pattern = re.compile(fnmatch.translate(text.replace("[", "[[]")))
        names = {layer.name for name, layer in aliases.items() if pattern.match(name)}
        if not names:
            raise PlanError(
                f"{where}no layer matches '{text}'",
                nearest(text, aliases),
                code="QD-PLAN-LAYER",
            )
        return [layer for layer in layers if layer.name in names]
    raise PlanError(
        f"{where}the model has no layer '{text}'", nearest(text, aliases), code="QD-PLAN-LAYER"
    )


def layer_aliases(model: Model, layers: Layers) -> dict[str, Layer]:
    """Every name a layer may go by; its own name wins over another layer's alias."""
    aliases: dict[str, Layer] = {}
    for layer in layers:
        for node in layer.nodes:
            for user_name in model.origins.get(node, ()):
                aliases.setdefault(user_name, layer)
            aliases.setdefault(node, layer)
    return aliases | dict(layers.by_name)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that names the known name closest to `name`, for error messages."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    return f"The closest name is '{close[0]}'." if close else "There are none."


def _operators_hint(operator: str, layers: Layers) -> str:
    """What could be meant by an operator that no layer has."""
    known = sorted({layer.op_type for layer in layers})
    nodes = layers.graph.by_name
    within = sorted({x.op_type for x in layers for n in x.nodes if nodes[n].op_type == operator})
    if within:
        hint = f"It is part of the layers of {', '.join(OPERATOR + a for a in within)} here. "
    else:
        close = difflib.get_close_matches(operator, known, n=1, cutoff=0.5)
        hint = f"Did you mean '{OPERATOR}{close[0]}'? " if close else ""
    return f"{hint}It has {', '.join(known)}."
