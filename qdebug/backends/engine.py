"""Engines: what a runtime makes of a model, and everything the pipeline asks of one.

The pipeline knows an `EngineRuntime` and nothing below it. TensorRT implements the protocol itself
(run/tensorrt/backend.py). A runtime that compiles in this process, when a session is opened, needs
no more than `run.base.Backend`: `run.host.HostRuntime` makes an EngineRuntime of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, Self, runtime_checkable

import numpy as np
import onnx

from qdebug.backends.base import Backend, Session
from qdebug.engine_info.layers import EngineInfo
from qdebug.engine_info.measurements import LayerTime
from qdebug.types import Feeds, Skipped, TensorSpec

Shape = tuple[int, ...]


class CaptureWay(StrEnum):
    """How tensors inside an engine are observed. The earlier ways see more; the later ones change
    the engine less."""

    OUTPUTS = "outputs"
    """Every tensor is an output of the engine: nothing is fused over it."""
    DEBUG = "debug"
    """Named debug tensors (`mark_debug`): TensorRT calls back with each."""
    UNFUSED = "unfused"
    """What fusion leaves: the engine is built as always, and calls back with the tensors between
    its kernels."""
    HARMLESS = "harmless"
    """Only those tensors are outputs that can be without changing what the engine computes."""


def noise(inputs: Sequence[TensorSpec], shapes: Mapping[str, Shape] | None = None) -> Feeds:
    """Normal noise for every input; integers are 0 or 1, which most models accept: as a mask, a
    token, an index.

    Args:
        shapes: by name, of inputs whose own shape is not fixed; an axis that is not known is 1.
    """
    rng = np.random.default_rng(0)
    feeds = {}
    for spec in inputs:
        axes = (shapes or {}).get(spec.name, spec.shape)
        shape = tuple(axis if isinstance(axis, int) else 1 for axis in axes)
        floating = np.issubdtype(spec.dtype, np.floating)
        values = rng.normal(size=shape) if floating else rng.integers(0, 2, size=shape)
        feeds[spec.name] = values.astype(spec.dtype)
    return feeds


@dataclass(frozen=True)
class BuildWarning:
    """A warning of a parser or builder.

    Attributes:
        text: as the runtime gave it, without source positions.
        nodes: nodes of the model that it names.
        count: how often it came.
    """

    text: str
    nodes: tuple[str, ...] = ()
    count: int = 1


@dataclass(frozen=True)
class ProviderNodes:
    """What one execution provider of ONNX Runtime executes of a model.

    Attributes:
        provider: such as "CUDAExecutionProvider".
        nodes: names, of the graph as it was when it was shared out: with nodes that ONNX Runtime
            and the provider added, without those that it had folded.
        operators: how many of each type.
    """

    provider: str
    nodes: tuple[str, ...]
    operators: Mapping[str, int]


@dataclass(frozen=True)
class BuiltEngine:
    """What a build gave.

    Attributes:
        engine: the serialized engine, which only the library that built it can run; empty where
            the runtime has none.
        log: text that `qdebug inspect` reads: a verbose build log that ends with the layers that
            were built, or the layers as JSON.
        warnings: those of the log, each once.
        skipped: tensors that cannot be observed, with the reason.
        seconds: wall time of the build; of a cached engine, when it was built.
        key: a hash of model, settings, library and device.
        cached: it was built earlier.
        info: the engine's layers; None where the runtime does not tell.
        providers: who executes which nodes, where several share them.
    """

    engine: bytes = field(repr=False)
    log: str = field(repr=False)
    warnings: tuple[BuildWarning, ...]
    skipped: tuple[Skipped, ...]
    seconds: float
    key: str
    cached: bool = False
    info: EngineInfo | None = field(default=None, repr=False)
    providers: tuple[ProviderNodes, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The size of the serialized engine."""
        return len(self.engine)


class EngineSession(Session, Protocol):
    """A session that can be timed."""

    def latency_ms(self, feeds: Feeds) -> float:
        """Median time of one execution in milliseconds: on a GPU, of the GPU and without copies;
        on a CPU, wall time."""
        ...

    def layer_times(self, feeds: Feeds) -> tuple[LayerTime, ...]:
        """Median time of each layer, in execution order; () where the runtime does not report
        any."""
        ...


class EngineRuntime(Protocol):
    """A runtime with its settings, as the pipeline uses it. Also a `run.base.Backend`.

    Attributes:
        name: of the backend, as in the registry.
        label: of the library, for people, such as "TensorRT for RTX 1.7.1.116".
        built_for: for people: a GPU's name, compute capabilities, a CPU.
        target: the compute capabilities it builds for, such as "8.6+8.9"; "" for this machine.
        device_name: what executes engines, for people; "" where there is no such device.
        not_run: why engines are built but not executed here; "" where they are executed.
        typing: how a plan is lowered for the builder: "strong" (Q/DQ and Casts), "implicit" or
            "implicit-cache".
        ways: of observing tensors, in the order in which they are to be tried.
        provider_name: its execution provider, of those that have several; None of all others.
    """

    @property
    def name(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def provider_name(self) -> str | None: ...
    @property
    def built_for(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def device_name(self) -> str: ...
    @property
    def not_run(self) -> str: ...
    @property
    def typing(self) -> str: ...
    @property
    def ways(self) -> tuple[CaptureWay, ...]: ...
    @property
    def keeps(self) -> bool:
        """Whether engines may be cached between runs."""
        ...

    def start(self) -> None:
        """Acquire the device, before long work.

        Raises:
            UsageError: a package that is needed to execute is not installed.
            BackendError: the device does not answer.
        """
        ...

    def fitted(self, inputs: Sequence[TensorSpec], shapes: Sequence[Mapping[str, Shape]]) -> Self:
        """The same runtime, for inputs of these shapes.

        Args:
            inputs: of the model.
            shapes: by input name, one mapping per execution; may be empty where no input has
                dynamic axes.

        Raises:
            UsageError: an input with dynamic axes, and no shape for it.
        """
        ...

    def anew(self) -> Self:
        """The same runtime without its cache of engines."""
        ...

    def check(self, proto: onnx.ModelProto) -> None:
        """Find out whether the library takes a model, with as little work as that needs.

        Raises:
            UsageError, ModelError, PlanError, BackendError: it does not.
        """
        ...

    def key(self, proto: onnx.ModelProto) -> str:
        """A hash of everything that decides the engine of a model.

        Raises:
            BackendError: the model cannot be handed over.
        """
        ...

    def build(self, proto: onnx.ModelProto) -> BuiltEngine:
        """The engine of a lowered model.

        Raises:
            UsageError, ModelError, PlanError, BackendError: it cannot be built.
        """
        ...

    def clean(self, proto: onnx.ModelProto, built: BuiltEngine | None = None) -> EngineSession:
        """The engine of `proto` as it is used, with nothing observed, ready to execute.

        Args:
            built: what `build` gave for `proto`, where that is at hand.

        Raises:
            UsageError, ModelError, PlanError, BackendError: it cannot be built or executed here.
        """
        ...

    def open(
        self,
        proto: onnx.ModelProto,
        capture: Sequence[str],
        way: CaptureWay | None = None,
        group_bytes: int | None = None,
    ) -> Session:
        """Build and load a model with `capture` observable, as in Backend.open.

        Args:
            way: how to observe; None takes the first of `ways`.
            group_bytes: how many bytes of tensors one engine may have as outputs in addition to
                those of the model; None sets no limit.

        Raises:
            UsageError, ModelError, PlanError, BackendError: it cannot be built or executed.
        """
        ...


@runtime_checkable
class Described(Protocol):
    """A session whose runtime reports what it executes."""

    def engine_info(self) -> EngineInfo:
        """The layers that are executed, with their precisions."""
        ...


@runtime_checkable
class Assigned(Protocol):
    """A session whose nodes execution providers share."""

    def providers(self) -> tuple[ProviderNodes, ...]:
        """Who executes which nodes; () where that is not known."""
        ...


@runtime_checkable
class Fixable(Protocol):
    """A backend some of whose devices take no dynamic axes."""

    def fixed(self, axes: Mapping[str, int]) -> Backend:
        """The same backend, for models whose axes of these names have these sizes."""
        ...


@runtime_checkable
class Profiled(Protocol):
    """A session whose runtime measures its layers."""

    def layer_times(self, feeds: Feeds) -> tuple[LayerTime, ...]:
        """See EngineSession.layer_times."""
        ...


@runtime_checkable
class Serialized(Protocol):
    """A session whose engine can be written to a file."""

    def serialized(self) -> bytes:
        """The engine, as the runtime itself reads it."""
        ...
