"""Build engines through Polygraphy's loaders.

The ONNX model is the lowered plan: Q/DQ pairs and Casts say the precision of everything, and the
network is strongly typed, on every library. TensorRT 10 alone can also be given a plan in the terms
of its implicit quantization, as `constraints.constrained_graph` writes it.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings as python_warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, NoReturn

import onnx

from qdebug.backends.engine import BuiltEngine
from qdebug.backends.tensorrt.build.implicit import (
    EXPECTED_WARNINGS,
    apply_constraints,
    check_implicit,
    constrain_config,
)
from qdebug.backends.tensorrt.build.logger import LogMessage, log_text
from qdebug.backends.tensorrt.build.messages import (
    build_failure,
    no_device_for_refit,
    parse_failure,
    warnings_of,
)
from qdebug.backends.tensorrt.build.progress import BuildProgress, make_monitor
from qdebug.backends.tensorrt.build.settings import (
    BuildSettings,
    check_profile,
    check_settings,
    config_loader,
)
from qdebug.backends.tensorrt.execute.device import Device, find_device
from qdebug.backends.tensorrt.library import Library
from qdebug.errors import BackendError, QdebugError, UsageError
from qdebug.memo import Memo
from qdebug.network.layers import QUANTIZABLE_OPS
from qdebug.network.weights import (
    ONE_FILE_BYTES,
    model_digest,
    on_disk,
    serialized,
    size_with_data,
)
from qdebug.plan.constraints import constraints_in
from qdebug.types import ProgressCallback, Skipped, ignore_progress
from qdebug.wording import option


@dataclass(frozen=True)
class BuildJob:
    """All that decides an engine.

    Attributes:
        proto: the model; not modified. Its types are kept exactly, unless it carries constraints.
        settings: see BuildSettings; `profile` must name every input with dynamic axes.
        outputs: tensors to make outputs in addition to those of the model.
        debug: tensors to mark as debug tensors.
    """

    proto: onnx.ModelProto
    settings: BuildSettings
    outputs: Sequence[str] = ()
    debug: Sequence[str] = ()


def build_engine(
    library: Library,
    proto: onnx.ModelProto,
    settings: BuildSettings,
    *,
    outputs: Sequence[str] = (),
    debug: Sequence[str] = (),
    cache: Memo | None = None,
    progress: ProgressCallback = ignore_progress,
) -> BuiltEngine:
    """Build the engine of a lowered model, or take it from `cache`.

    Args:
        library: what builds.
        proto: see BuildJob, as are settings, outputs and debug.
        cache: where engines are kept; None builds anew and keeps nothing.
        progress: called with the percentage that is done; never raises.

    Raises:
        UsageError: settings that the library does not have, no GPU and no compute capability, or
            constraints where the library has no implicit quantization.
        ModelError: the model cannot be parsed; names the node.
        PlanError: constraints that do not fit what was parsed.
        BackendError: the builder failed.
    """
    job = BuildJob(proto, settings, outputs, debug)
    _check(library, job)
    key = engine_key(library, job)
    kept: BuiltEngine | None = cache.get(key) if cache is not None else None
    if kept is not None:
        return replace(kept, cached=True)
    started = time.perf_counter()
    with _quiet(library) as messages:
        build = _Build(library, job, messages, BuildProgress(progress))
        network = build.parse()
        skipped = observe(network[1], outputs, debug)
        with _leaving_nothing(library, settings):
            engine = build.build(network)
    built = BuiltEngine(
        engine=engine,
        log=log_text(messages),
        warnings=warnings_of(_unexpected(messages, proto), proto),
        skipped=skipped,
        seconds=time.perf_counter() - started,
        key=key,
    )
    if cache is not None:
        cache.put(key, built)
    return built


@contextmanager
def _leaving_nothing(library: Library, settings: BuildSettings) -> Iterator[None]:
    """After a failed build, TensorRT for RTX 1.7.1 builds the process's next engine with other
    kernels: convolutions run in FP32 that would run in INT8. So an engine that nobody uses is built
    first, which takes 20 ms."""
    try:
        yield
    except Exception:
        if library.rtx:
            unused = BuildSettings(compute_capabilities=settings.compute_capabilities)
            build = _Build(
                library, BuildJob(_identity(), unused), [], BuildProgress(ignore_progress)
            )
            with suppress(Exception):  # what failed first is raised below
                build.build(build.parse())
        raise


def _identity() -> onnx.ModelProto:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "identity", [x], [y])
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9
    )


def _unexpected(messages: Sequence[LogMessage], proto: onnx.ModelProto) -> Sequence[LogMessage]:
    if constraints_in(proto) is None:
        return messages
    return [m for m in messages if not EXPECTED_WARNINGS.search(m.text)]


def check_parse(library: Library, proto: onnx.ModelProto, settings: BuildSettings) -> None:
    """Parse a model as a build does, and build nothing.

    Raises:
        UsageError, ModelError, PlanError: as `build_engine`.
    """
    job = BuildJob(proto, settings)
    _check(library, job)
    with _quiet(library) as messages:
        _Build(library, job, messages, BuildProgress(ignore_progress)).parse()


def engine_key(library: Library, job: BuildJob) -> str:
    """A SHA-256 of the model, the settings, the contents of plugins, the library, and of the GPU
    where the engine is for the one that is present. The timing cache does not count."""
    settings = job.settings
    facts = asdict(settings) | {
        "timing_cache": None,
        "plugins": [_digest(p.read_bytes()) for p in settings.plugins],
        "model": model_digest(job.proto),
        "library": [library.kind, *library.version],
        "device": None if settings.compute_capabilities else repr(find_device()),
        "outputs": sorted(set(job.outputs)),
        "debug": sorted(set(job.debug)),
    }
    return _digest(json.dumps(facts, sort_keys=True).encode())


def _check(library: Library, job: BuildJob) -> None:
    check_settings(library, job.settings)
    check_profile(job.proto, job.settings.profile or {})
    _check_refit(library, job)
    if constraints_in(job.proto) is not None:
        check_implicit(library)


def _check_refit(library: Library, job: BuildJob) -> None:
    # Where TensorRT for RTX fails for want of a GPU it writes to stderr itself, past any logger.
    products = any(node.op_type in QUANTIZABLE_OPS for node in job.proto.graph.node)
    if job.settings.refit and library.rtx and products and not isinstance(find_device(), Device):
        raise no_device_for_refit(library)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@contextmanager
def _quiet(library: Library) -> Iterator[list[LogMessage]]:
    """Nothing is printed, by Polygraphy or as a Python warning; what TensorRT says is collected."""
    from polygraphy.logger import G_LOGGER

    with (
        library.logs.collecting() as messages,
        G_LOGGER.verbosity(G_LOGGER.CRITICAL + 1),
        python_warnings.catch_warnings(),
    ):
        python_warnings.simplefilter("ignore")
        yield messages


@dataclass(frozen=True)
class _Build:
    """The two steps of a build, and the edge at which foreign errors become ours."""

    library: Library
    job: BuildJob
    messages: list[LogMessage]
    progress: BuildProgress

    def parse(self) -> tuple[Any, Any, Any]:
        """Builder, network and parser; the network reads the parser's memory."""
        constraints = constraints_in(self.job.proto)
        self._load_plugins()
        try:
            network = self._network(
                # Only TensorRT 10 has a choice.
                strongly_typed=self.library.implicit and constraints is None,
                mark_unfused_tensors_as_debug_tensors=self.job.settings.unfused_debug_tensors,
            )
        except Exception as error:
            self._raise(parse_failure(self.library, self.messages, self.job.proto, error), error)
        if constraints is not None:
            apply_constraints(self.library, network[1], constraints)
        return network

    def _network(self, **typing: bool) -> tuple[Any, Any, Any]:
        from polygraphy.backend.trt import NetworkFromOnnxBytes, NetworkFromOnnxPath

        proto = self.job.proto
        made: tuple[Any, Any, Any]
        if size_with_data(proto) <= ONE_FILE_BYTES:
            made = NetworkFromOnnxBytes(serialized(proto), **typing)()
        else:
            with on_disk(proto) as path:
                made = NetworkFromOnnxPath(str(path), **typing)()
        return made

    def build(self, network: tuple[Any, Any, Any]) -> bytes:
        """The serialized engine."""
        from polygraphy.backend.trt import EngineBytesFromNetwork

        settings, constraints = self.job.settings, constraints_in(self.job.proto)
        calibrators = []

        def constrain(config: Any) -> None:
            if constraints is not None:
                made = constrain_config(self.library, config, network[1], constraints)
                calibrators.append(made)  # the configuration itself does not keep it alive

        timing = None if self.library.rtx else settings.timing_cache
        monitor = make_monitor(self.library.module, self.progress)
        try:
            if timing is not None:
                timing.parent.mkdir(parents=True, exist_ok=True)
            engine = EngineBytesFromNetwork(
                network,
                config=config_loader(self.library, settings, monitor, constrain),
                save_timing_cache=str(timing) if timing else None,
            )()
            self.progress.finish()
        except Exception as error:
            names = [node.name for node in self.job.proto.graph.node if node.name]
            refused = any(c is not None and c.refused for c in calibrators)
            failure = build_failure(self.library, self.messages, error, names)
            self._raise(_cache_refused(self.library) if refused else failure, error)
        return bytes(engine)

    def _load_plugins(self) -> None:
        from polygraphy.backend.trt import LoadPlugins

        for path in self.job.settings.plugins:
            try:
                LoadPlugins([str(path.resolve())])()  # a bare name is not looked for here
            except OSError as error:
                raise UsageError(
                    f"{option('plugin')}: {path} cannot be loaded: {error}",
                    f"Give a shared object built for {self.library.name} on this platform.",
                    code="QD-USAGE-PLUGIN",
                ) from error

    def _raise(self, failure: QdebugError, cause: Exception) -> NoReturn:
        """Raise `failure` with the full text of TensorRT's messages, which a traceback shows."""
        if isinstance(cause, QdebugError):
            raise cause
        for message in self.messages:
            if message.severity in ("INTERNAL_ERROR", "ERROR", "WARNING"):
                failure.add_note(message.text)
        raise failure from cause


def _cache_refused(library: Library) -> BackendError:
    return BackendError(
        f"{library.name} did not accept the calibration cache made from the plan",
        f"Use {option('typing', 'implicit')}, which gives the ranges one by one.",
        code="QD-BACKEND-CACHE-REFUSED",
    )


def tensors_of(network: Any) -> dict[str, Any]:
    """Every `trt.ITensor` that a layer of the network computes, by name."""
    found = {}
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        for slot in range(layer.num_outputs):
            tensor = layer.get_output(slot)
            if tensor is not None:
                found[tensor.name] = tensor
    return found


def observe(network: Any, outputs: Sequence[str], debug: Sequence[str]) -> tuple[Skipped, ...]:
    """Mark tensors as outputs and as debug tensors, by their exact names.

    (Polygraphy's ModifyNetworkOutputs takes names as wildcard patterns, and a tensor may be called
    `a[0]`; it also replaces the outputs instead of adding to them.)

    Returns:
        Those that cannot be marked, with the reason.
    """
    tensors = tensors_of(network) if outputs or debug else {}
    skipped = []
    for names, mark in ((outputs, _mark_output), (debug, _mark_debug)):
        for name in dict.fromkeys(names):
            tensor = tensors.get(name)
            if tensor is None:
                reason = "no layer of the parsed network computes it"
            else:
                reason = mark(network, tensor)
            if reason:
                skipped.append(Skipped(name, reason))
    return tuple(skipped)


def _mark_output(network: Any, tensor: Any) -> str:
    if tensor.is_network_output:
        return ""
    if tensor.is_shape_tensor:
        return "a shape tensor: it lives on the host and decides shapes"
    network.mark_output(tensor)
    return ""


def _mark_debug(network: Any, tensor: Any) -> str:
    return "" if network.mark_debug(tensor) else "TensorRT does not let it be a debug tensor"
