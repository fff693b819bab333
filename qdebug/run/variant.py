"""A model to run, and what is computed of what it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar, runtime_checkable

import onnx

from qdebug.backends.base import Backend
from qdebug.metrics.accumulate import ExecutedBatch
from qdebug.network.weights import model_digest
from qdebug.types import Feeds

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
        reads: the names of other variants, whose tensors `feeds` takes.
        feeds: gives the inputs; None takes those of the samples.
        batches: the indices of those that it runs on; on others it gives no tensor. None for all.
        shared: many jobs read it, as they read the FP32 model: it is run once and its tensors are
            held in memory, as far as there is room.
    """

    make: Callable[[], onnx.ModelProto]
    backend: Backend
    key: str | None = None
    capture: Mapping[str, str] = field(default_factory=dict)
    reads: tuple[str, ...] = ()
    feeds: Callable[[ExecutedBatch], Feeds] | None = None
    batches: frozenset[int] | None = None
    shared: bool = False


def as_it_is(
    proto: onnx.ModelProto,
    backend: Backend,
    capture: Mapping[str, str] | None = None,
    *,
    shared: bool = False,
) -> Variant:
    """A model without changes."""
    how = key_of(backend)
    key = how and f"{model_digest(proto)} {how}"
    return Variant(partial(_itself, proto), backend, key, capture or {}, shared=shared)


@dataclass(frozen=True)
class FedByReference:
    """Feeds a variant, such as isolated layers, with the activations of the reference."""

    inputs: tuple[str, ...]

    def __call__(self, executed: ExecutedBatch) -> Feeds:
        """See Variant.feeds."""
        truth = {**executed.feeds, **executed.reference}
        return {name: truth[name] for name in self.inputs}


@runtime_checkable
class Repeatable(Protocol):
    """A backend that gives the same for the same on every machine of a kind."""

    @property
    def results_key(self) -> str:
        """Equal for backends that give the same."""
        ...


def key_of(backend: Backend) -> str | None:
    """Equal for backends that give the same; None where no result of one may be kept."""
    return backend.results_key if isinstance(backend, Repeatable) else None


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
