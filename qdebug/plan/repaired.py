"""What a model that `qdebug repair` wrote says of itself, in its metadata."""

from __future__ import annotations

import json
from collections.abc import Sequence

import onnx

_KEY = "qdebug.repair"


def marked_repaired(proto: onnx.ModelProto, remedies: Sequence[str]) -> onnx.ModelProto:
    """A copy of a model in which the remedies are noted."""
    marked = onnx.ModelProto()
    marked.CopyFrom(proto)
    marked.metadata_props.add(key=_KEY, value=json.dumps({"remedies": list(remedies)}))
    return marked


def remedies_in(proto: onnx.ModelProto) -> tuple[str, ...]:
    """The remedies that were noted in a model; empty where none were."""
    texts = [p.value for p in proto.metadata_props if p.key == _KEY]
    try:
        return tuple(str(name) for name in json.loads(texts[0])["remedies"]) if texts else ()
    except (ValueError, KeyError, TypeError):  # somebody else's
        return ()
