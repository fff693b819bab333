"""ONNX Runtime as it is deployed: default optimizations, INT8 kernels, any execution provider.

The simulation (run/simulation.py) executes the Q/DQ nodes as written on the same runtime; what
differs from it is kernel error, as with any engine. ONNX Runtime replaces a group DequantizeLinear
→ operator → QuantizeLinear by an INT8 kernel only where its rules match, so a model with Q/DQ may
well be executed in FP32: the audit, which reads the graph after all optimizations, shows it.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from pathlib import Path
from typing import Any

import onnx

from qdebug.backends.base import check_imports
from qdebug.backends.capture import encode_marked
from qdebug.backends.engine import ProviderNodes
from qdebug.backends.options import DEFAULT_SESSIONS, SessionSettings, session_options
from qdebug.backends.providers import CPU, Provider, provider_of
from qdebug.backends.simulation import OrtSession, loading, running
from qdebug.backends.stream import available_cores
from qdebug.engine_info.files.onnx_file import dtype_of
from qdebug.engine_info.layers import EngineInfo, EngineLayer, InfoSource
from qdebug.engine_info.measurements import LayerTime
from qdebug.engine_info.mismatch import MOVING_OPS
from qdebug.engine_info.tensors import EngineTensor
from qdebug.errors import BackendError
from qdebug.outputfiles import refuse_temporary
from qdebug.plan.rewrite.qoperator import accuracy_level
from qdebug.types import Feeds, Skipped, Tensors
from qdebug.wording import option

_ACCURACY_LEVEL = "session.qdq_matmulnbits_accuracy_level"
_ASSIGNMENT = "session.record_ep_graph_assignment_info"
_ROUNDS = 10
_UNCOMPILED = frozenset({CPU, "CUDAExecutionProvider"})
"""Providers that leave the operators of a graph as nodes, so that ONNX Runtime can write it."""


class OnnxRuntimeBackend:
    """See Backend."""

    name = "onnxruntime"

    def __init__(
        self,
        provider: str | None = None,
        provider_option: Sequence[str] = (),
        threads: int | None = None,
        sessions: SessionSettings = DEFAULT_SESSIONS,
    ) -> None:
        """Use `provider`, such as "CUDAExecutionProvider" or "CUDA"; None is the CPU's.

        Args:
            provider, provider_option: see providers.provider_of.
            threads: how many; None takes the default of ONNX Runtime, one for each core of the
                machine, or, where the affinity of this process excludes some of its CPUs, one for
                each CPU that is left.

        Raises:
            UsageError: neither this installation of ONNX Runtime nor a package has it.
            BackendError: the package that adds it cannot be loaded.
        """
        import onnxruntime as ort

        self.provider = provider_of(provider, provider_option)
        package = f" with {self.provider.package}" if self.provider.package else ""
        self.label = f"ONNX Runtime {ort.__version__}{package}"
        self.device_name = self.provider.label
        cores = available_cores()
        self._operators = sessions.operators
        self._axes: Mapping[str, int] = {}
        # A provider of a GPU may capture a CUDA graph while it runs, which any other use of the GPU
        # spoils (seen with TensorRT-RTX's: "execution context enqueue failed").
        self._turn = None if self.provider.name == CPU else threading.Lock()
        self._threads = threads or (0 if cores == os.cpu_count() else cores)

    @property
    def provider_name(self) -> str:
        """See EngineRuntime."""
        return self.provider.name

    def fixed(self, axes: Mapping[str, int]) -> OnnxRuntimeBackend:
        """See engine.Fixable. The CPU's provider needs no fixed axes; QNN's takes no others."""
        found = copy(self)
        found._axes = {} if self.provider.name == CPU else axes
        return found

    def open(self, proto: onnx.ModelProto, capture: Sequence[str]) -> DeployedSession:
        """See Backend.open.

        Raises:
            ModelError: ONNX Runtime does not take the model.
            BackendError: ONNX Runtime failed, or the provider executes nothing of the model.
        """
        check_imports(proto, self.label)
        with loading():
            marked, skipped = encode_marked(proto, capture)
            kind = AuditedSession if self.provider.name in _UNCOMPILED else DeployedSession
            session = kind(
                marked,
                self.provider,
                proto,
                skipped,
                threads=self._threads,
                operators=self._operators,
                axes=self._axes,
                turn=self._turn,
            )
        parts = session.providers()
        if parts and self.provider.name not in {part.provider for part in parts}:
            session.close()
            raise BackendError(
                f"{self.device_name} executes no node of this model: all "
                f"{sum(len(part.nodes) for part in parts)} fell back to the CPU",
                f"If it takes fixed shapes only, as QNN does, {option('batch_size', '1')} makes "
                "them alike for all samples; else it lacks these operators, types or a library.",
                code="QD-BACKEND-PROVIDER-FELL-BACK",
            )
        return session


class DeployedSession(OrtSession):
    """See Session. It also times its layers."""

    def __init__(
        self,
        model: bytes,
        provider: Provider,
        proto: onnx.ModelProto,
        skipped: Sequence[Skipped] = (),
        *,
        threads: int = 0,
        operators: Sequence[Path] = (),
        axes: Mapping[str, int] | None = None,
        turn: threading.Lock | None = None,
    ) -> None:
        """`model` is `proto`, encoded, perhaps with more outputs; 0 `threads` are the default.
        `operators` are libraries of custom ones; `axes` have fixed sizes; of the sessions that
        share a `turn` one runs at a time."""
        self._model, self._provider, self._proto = model, provider, proto
        self._axes = axes or {}
        self._threads, self._operators = threads, operators
        self._turn = turn or nullcontext()
        super().__init__(self._created(), skipped)

    def run(self, feeds: Feeds) -> Tensors:
        """See Session.run."""
        with self._turn:
            return super().run(feeds)

    def layer_times(self, feeds: Feeds) -> tuple[LayerTime, ...]:
        """See run.engine.Profiled: medians of 10 executions, in a session of its own.

        Raises:
            BackendError: it cannot be executed.
        """
        used = self._given(feeds)
        with tempfile.TemporaryDirectory() as folder:
            with self._turn, running():
                session = self._created(profile=f"{folder}/profile")
                for _ in range(_ROUNDS + 1):
                    session.run(None, used)
                path = Path(session.end_profiling())
            events = _events(path)
        times: dict[str, list[float]] = {}
        for event in events:
            name = str(event.get("name", ""))
            if event.get("cat") == "Node" and name.endswith("_kernel_time"):
                times.setdefault(name.removesuffix("_kernel_time"), []).append(event["dur"] / 1000)
        return tuple(LayerTime(name, statistics.median(all_[1:])) for name, all_ in times.items())

    def providers(self) -> tuple[ProviderNodes, ...]:
        """See engine.Assigned. () before ONNX Runtime 1.24, which does not tell."""
        if not hasattr(self._session, "get_provider_graph_assignment_info"):
            return ()
        found: dict[str, list[Any]] = {}
        for part in self._session.get_provider_graph_assignment_info():
            found.setdefault(part.ep_name, []).extend(part.get_nodes())
        return tuple(
            ProviderNodes(name, tuple(n.name for n in nodes), Counter(n.op_type for n in nodes))
            for name, nodes in found.items()
        )

    def close(self) -> None:
        """See Session.close."""
        super().close()
        self._model = b""

    def _created(self, *, profile: str = "", optimized: str = "") -> Any:
        """An InferenceSession with the defaults of ONNX Runtime, but for the threads."""
        options = session_options(self._operators)
        options.intra_op_num_threads = self._threads
        for name, size in self._axes.items():
            options.add_free_dimension_override_by_name(name, size)
        level = accuracy_level(self._proto)
        if level is not None:  # of Q/DQ nodes it would be 4
            options.add_session_config_entry(_ACCURACY_LEVEL, str(level))
        if profile:
            options.enable_profiling = True
            options.profile_file_prefix = profile
        if optimized:
            options.optimized_model_filepath = optimized
        options.add_session_config_entry(_ASSIGNMENT, "1")
        return self._provider.session(self._model, options)


def _events(path: Path) -> list[dict[str, Any]]:
    """What ONNX Runtime wrote while it profiled.

    Raises:
        StoreError: it is not whole.
    """
    try:
        events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # ONNX Runtime does not say that the disk is full
        what = "the execution times of the layers cannot be kept in a temporary file"
        refuse_temporary(path.parent.parent, what, error)
    return events


class AuditedSession(DeployedSession):
    """Where the graph after all optimizations can be written."""

    def engine_info(self) -> EngineInfo:
        """See run.engine.Described.

        Raises:
            BackendError: the graph cannot be written.
        """
        optimized = onnx.ModelProto.FromString(self.serialized())
        layers = tuple(_layers(optimized, self._proto))
        return EngineInfo(layers, InfoSource.RUNTIME, provider=self._provider.name)

    def serialized(self) -> bytes:
        """See run.engine.Serialized: the optimized model, for this kind of processor.

        Raises:
            BackendError: it cannot be written.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "optimized.onnx"
            with running():
                self._created(optimized=str(path))
            return path.read_bytes()


def _layers(optimized: onnx.ModelProto, proto: onnx.ModelProto) -> Iterator[EngineLayer]:
    """The nodes of the optimized graph, each with the nodes of `proto` that it computes."""
    given = onnx.shape_inference.infer_shapes(proto)
    types = {**_types(given), **_types(optimized)}
    for node in optimized.graph.node:
        if node.op_type == "MatMulNBits":  # its codes are packed into bytes
            bits = next(a.i for a in node.attribute if a.name == "bits")
            types[node.input[1]] = f"int{bits}"
    for node in optimized.graph.node:  # tensors that optimizations made carry no type
        for tensor in node.output:
            types[tensor] = types.get(tensor) or _made_type(node, types)
    constants = {i.name for i in optimized.graph.initializer}
    tensors = {t for node in optimized.graph.node for t in (*node.input, *node.output) if t}
    here = tensors | {node.name for node in optimized.graph.node}
    producers = {t: node for node in proto.graph.node for t in node.output if t}
    known = {node.name for node in proto.graph.node}
    for node in optimized.graph.node:
        reads = [EngineTensor(t, types.get(t, "")) for t in node.input if t]
        inside = _computed(node, producers, here)
        # Where a name is taken, ONNX Runtime appends a number to it.
        own = [n for n in (node.name, re.sub(r"_token_\d+$", "", node.name)) if n in known]
        names = [*own[:1], *inside]
        yield EngineLayer(
            name=node.name,
            layer_type=node.op_type,
            inputs=tuple(t for t in reads if t.name not in constants),
            outputs=tuple(EngineTensor(t, types.get(t, "")) for t in node.output if t),
            constants=tuple(t for t in reads if t.name in constants),
            onnx_nodes=tuple(dict.fromkeys(names)),
            origin="QDQ" if node.op_type in ("QuantizeLinear", "DequantizeLinear") else "",
        )


def _computed(
    node: onnx.NodeProto, producers: Mapping[str, onnx.NodeProto], here: set[str]
) -> Iterator[str]:
    """The nodes between what `node` reads and what it writes: from its outputs back to tensors and
    nodes that the optimized graph still has (`here`)."""
    pending, seen = [t for t in node.output if t in producers], set(node.input)
    while pending:
        tensor = pending.pop()
        source = producers.get(tensor)
        if tensor in seen or source is None or source.name in here - {node.name}:
            continue
        seen.update(source.output)
        if source.name:
            yield source.name
        pending += [t for t in source.input if t and t not in here]


def _made_type(node: onnx.NodeProto, types: Mapping[str, str]) -> str:
    """The type of what a node computes; "" where its operator does not determine it."""
    if node.op_type == "QuantizeLinear":
        return types.get(node.input[2], "") if len(node.input) > 2 else "int8"
    if node.op_type.startswith("QLinear"):
        return "int8"
    if node.op_type in MOVING_OPS and node.input:
        return types.get(node.input[0], "")
    return ""


def _types(proto: onnx.ModelProto) -> dict[str, str]:
    """The element type of every tensor that has one on record, as in EngineTensor.dtype."""
    graph = proto.graph
    values = (*graph.input, *graph.output, *graph.value_info)
    found = {v.name: dtype_of(v.type.tensor_type.elem_type) for v in values}
    return found | {i.name: dtype_of(i.data_type) for i in graph.initializer}
