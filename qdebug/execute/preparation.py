"""Whether a model, as it was prepared, still computes what its file does."""

from __future__ import annotations

import logging
import math
from contextlib import closing

import numpy as np
import onnx

from qdebug.backends.base import Session
from qdebug.errors import QdebugError
from qdebug.execute.context import Context
from qdebug.metrics.sums import measure
from qdebug.metrics.tensor import sqnr_db
from qdebug.network.graph import Graph
from qdebug.network.prepare import Model
from qdebug.network.samples import Samples
from qdebug.types import Array, Feeds, Tensors
from qdebug.wording import counted

_LOG = logging.getLogger(__name__)

_SAME_DB = 60.0
"""Of 17 networks of PyPI packages that are folded 14 are equal to their files, one is 122 dB apart,
and two are 43 and 51 where rounding explains 32 and 41; one that the folder changed was at -25."""
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


def preparation_notes(model: Model, samples: Samples, context: Context) -> tuple[str, ...]:
    """A note where the first batch of samples gives other outputs in `model` than in its file, by
    more than rounding explains; none where the file does not run as it is.

    Raises:
        QdebugError: samples cannot be read, or the prepared model does not run.
    """
    graph = model.graph
    start = next(iter(samples.batches()))
    feeds = samples.feeds(start.start, start.count)
    outputs = list(graph.outputs)
    try:
        with closing(context.backend.open(model.file.proto, outputs)) as session:
            own = session.run(feeds)
    except QdebugError as error:
        _LOG.debug("the file does not run as it is: %s", error)
        return ()
    with closing(context.backend.open(graph.proto, outputs)) as session:
        found = _worst_db(own, session.run(feeds), graph)
        if found >= _SAME_DB or found >= rounding_db(session, feeds, graph):
            return ()
    return (
        f"FP32 is in doubt: folded as TensorRT would, the model's outputs are {found:.1f} dB from "
        "those of the file as ONNX Runtime runs it, and rounding does not explain that. Fold the "
        "file yourself (onnxsim, or ONNX Runtime's offline optimization), and report this model.",
    )


def import_notes(
    context: Context, model: Model, imported: onnx.ModelProto, samples: Samples
) -> tuple[str, ...]:
    """Whether a model that somebody else quantized or converted, as it was imported, gives the bits
    of its file on the first batch; nothing where the file does not run as it is.

    Raises:
        QdebugError: samples cannot be read, or the imported model does not run.
    """
    start = next(iter(samples.batches()))
    feeds = samples.feeds(start.start, start.count)
    found = []
    for proto in (model.graph.proto, imported):
        try:
            with closing(context.backend.open(proto, ())) as session:
                found.append(session.run(feeds))
        except QdebugError as error:
            if proto is imported:
                raise
            _LOG.debug("the file does not run as it is: %s", error)
            return ()
    own, read = found
    outputs = [t for t in model.graph.outputs if own[t].shape == read[t].shape and own[t].size]
    unequal = {t: (own[t] != read[t]) & ~(_is_nan(own[t]) & _is_nan(read[t])) for t in outputs}
    on = f"on {counted(start.count, 'sample')}"
    if len(outputs) == len(model.graph.outputs) and not any(u.any() for u in unequal.values()):
        return (f"{model.file.path} was imported exactly: {on} it gives the bits of the file.",)
    share = max((float(np.mean(u)) for u in unequal.values()), default=1.0)
    return (
        f"{model.file.path} was not imported exactly: {on} up to {100 * share:.2g}% of the values "
        f"of an output differ from the file's ({_worst_db(own, read, model.graph):.0f} dB).",
    )


def _is_nan(values: Array) -> Array:
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, np.bool_)


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
