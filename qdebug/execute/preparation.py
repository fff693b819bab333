"""Whether a model, as it was prepared, still computes what its file does."""

from __future__ import annotations

import logging
import math
from contextlib import closing
from dataclasses import replace

import numpy as np
import onnx

from qdebug.backends.base import Session
from qdebug.errors import QdebugError
from qdebug.execute.context import Context
from qdebug.metrics.sums import measure
from qdebug.metrics.tensor import sqnr_db
from qdebug.network.graph import Graph
from qdebug.network.prepare import Model, prepare_model
from qdebug.network.samples import Samples
from qdebug.types import Array, Feeds, Tensors
from qdebug.wording import counted

_LOG = logging.getLogger(__name__)

_SAME_DB = 60.0
"""Of 17 networks of PyPI packages that are folded 14 are equal to their files, one is 122 dB apart,
and two are 43 and 51 where rounding explains 32 and 41; one that the folder changed was at -25."""
_LAST_BITS_DB = 100.0
"""Of sums in another order; one code that differs in 500 is at 60 dB or less."""
_ALLOWANCE_DB = 10.0
"""What a network makes of a rounding of its inputs is measured; operators round too, some more."""


def rounding_db(session: Session, feeds: Feeds, graph: Graph) -> float:
    """What rounding each value of the inputs differently does to the worst output, as an SQNR in
    dB, less an allowance for operators that round more than once: each operator rounds too, so that
    the change is that of so many independent roundings. +inf where no input is of a floating type.

    Args:
        session: gives the outputs of `graph`.
    """
    random = np.random.default_rng(0)
    size = np.finfo(np.float32).eps * math.sqrt(max(1, len(graph.nodes)))
    moved = {
        name: (x * (1 + random.uniform(-size, size, x.shape))).astype(x.dtype)
        if x.dtype.kind == "f"
        else x
        for name, x in feeds.items()
    }
    return _worst_db(session.run(feeds), session.run(moved), graph) - _ALLOWANCE_DB


def is_folded(model: Model) -> bool:
    """Whether it has other operators than its file: constants or a BatchNormalization folded, a
    function or a branch put in the place of its call."""
    return _operators(model.graph.proto) != _operators(model.file.proto)


def checked(model: Model, samples: Samples, context: Context) -> Model:
    """`model`, if it gives for the first batch of samples what its file does, up to rounding, or
    where the file does not run as it is; else the model without folding, and a note.

    Raises:
        QdebugError: samples cannot be read, or the prepared model does not run.
    """
    far = _unexplained_db(model, samples, context)
    if far is None:
        return model
    plain = prepare_model(model.file, model.graph.opset, model.shapes, folded=False)
    apart = f"the outputs are {far:.1f} dB from those of the file as ONNX Runtime runs it"
    if _unexplained_db(plain, samples, context) is None:
        note = (
            f"The file is used as it is: with constants and BatchNormalization folded {apart}, and "
            "rounding does not explain that. Please report this model."
        )
    else:
        note = (
            f"FP32 is in doubt: prepared for Q/DQ nodes {apart}, and rounding does not explain "
            "that. Export the model at a newer opset, and report it."
        )
    return replace(plain, notes=(*plain.notes, note))


def _unexplained_db(model: Model, samples: Samples, context: Context) -> float | None:
    """How far the outputs of a prepared model are from those of its file; None where rounding
    explains it, or the file does not run as it is."""
    graph = model.graph
    found = _both(context, model.file.proto, graph.proto, samples)
    if found is None or (far := _worst_db(*found, graph)) >= _SAME_DB:
        return None
    feeds = _first_feeds(samples)
    with closing(context.backend.open(graph.proto, ())) as session:
        return None if far >= rounding_db(session, feeds, graph) else far


def import_notes(
    context: Context, model: Model, imported: onnx.ModelProto, samples: Samples
) -> tuple[str, ...]:
    """Whether a model that somebody else quantized or converted, as it was imported, gives the bits
    of its file on the first batch; nothing where the file does not run as it is.

    Raises:
        QdebugError: samples cannot be read, or the imported model does not run.
    """
    found = _both(context, model.graph.proto, imported, samples)
    if found is None:
        return ()
    own, read = found
    unequal = {t: _unequal(own[t], read[t]) for t in model.graph.outputs}
    on = f"on {counted(next(iter(samples.batches())).count, 'sample')}"
    if not any(u.any() for u in unequal.values()):
        return (f"{model.file.path} was imported exactly: {on} it gives the bits of the file.",)
    share = max(float(np.mean(u)) for u in unequal.values() if u.size)
    far = _worst_db(own, read, model.graph)
    how = "exactly, but for the last bits of FP32" if far >= _LAST_BITS_DB else "not exactly"
    return (
        f"{model.file.path} was imported {how}: {on} up to {100 * share:.2g}% of the values of an "
        f"output differ from the file's ({far:.0f} dB).",
    )


def _unequal(a: Array, b: Array) -> Array:
    """Where two arrays differ; NaN is NaN here."""
    if a.shape != b.shape:
        return np.ones(1, np.bool_)
    return np.asarray((a != b) & ((a == a) | (b == b)))


def _both(
    context: Context, file: onnx.ModelProto, other: onnx.ModelProto, samples: Samples
) -> tuple[Tensors, Tensors] | None:
    """The outputs of a file and of what was made of it on the first batch; None where the file does
    not run as it is."""
    feeds = _first_feeds(samples)
    try:
        with closing(context.backend.open(file, ())) as session:
            own = session.run(feeds)
    except QdebugError as error:
        _LOG.debug("the file does not run as it is: %s", error)
        return None
    with closing(context.backend.open(other, ())) as session:
        return own, session.run(feeds)


def _first_feeds(samples: Samples) -> Feeds:
    start = next(iter(samples.batches()))
    return samples.feeds(start.start, start.count)


def _operators(proto: onnx.ModelProto) -> int:
    return sum(node.op_type != "Constant" for node in proto.graph.node)


def _worst_db(reference: Tensors, other: Tensors, graph: Graph) -> float:
    """Of the outputs of a floating type; -inf where their shapes differ."""
    found = math.inf
    for tensor in graph.outputs:
        if tensor not in reference or reference[tensor].dtype.kind != "f":
            continue
        if reference[tensor].shape != other[tensor].shape:
            return -math.inf
        sums = measure(reference[tensor], other[tensor])
        sqnr = sqnr_db(sums.ref_sq, sums.sq_err)
        found = min(found, -math.inf if math.isnan(sqnr) else sqnr)
    return found
