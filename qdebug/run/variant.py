"""A model to run, and what is computed of what it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import onnx

from qdebug.backends.base import Backend
from qdebug.metrics.accumulate import ExecutedBatch
from qdebug.network.weights import model_digest

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Variant:
    """A model, what executes it, and what to observe of it.

    Attributes:
        make: gives the model; it is called where the model is executed, and only if it is.
        backend: executes it.
        key: equal for equal models on equal backends; None where nothing of it may be kept on disk.
        capture: tensors to observe besides the outputs: the name that reducers read each by -> its
            name in the model.
        fed_by: the name of another variant, whose tensors are inputs of this one, too.
        shared: many jobs read it, as they read the FP32 model: it is run once and its tensors are
            held in memory, as far as there is room.
    """

    make: Callable[[], onnx.ModelProto]
    backend: Backend
    key: str | None = None
    capture: Mapping[str, str] = field(default_factory=dict)
    fed_by: str | None = None
    shared: bool = False


def as_it_is(
    proto: onnx.ModelProto,
    backend: Backend,
    capture: Mapping[str, str] | None = None,
    *,
    shared: bool = False,
) -> Variant:
    """A model without changes, in a runtime that gives the same on every machine of a kind."""
    key = f"{model_digest(proto)} {backend.name}"
    return Variant(partial(_itself, proto), backend, key, capture or {}, shared=shared)


def _itself(proto: onnx.ModelProto) -> onnx.ModelProto:
    return proto


class Reducer(Protocol[ResultT]):
    """What is computed of every batch, and added up. Pure: it may run in several threads and
    processes at once."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the variants that it reads."""
        ...

    @property
    def key(self) -> str | None:
        """Equal for reducers that compute the same; None where nothing of it may be kept."""
        ...

    def reduce(self, executed: ExecutedBatch) -> ResultT:
        """Its result on one batch, whose arrays are not kept.

        Raises:
            QdebugError: the tensors are not what it needs.
        """
        ...

    def merge(self, before: ResultT, after: ResultT) -> ResultT:
        """The result on the batches of both, which may change and return `before`."""
        ...
