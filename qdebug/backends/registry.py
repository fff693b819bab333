"""The backends: what each is called, what it can do, and how to open it.

Everything that depends on which backend was chosen reads it here: settings, help, `doctor`, the
pipeline and the contract suite. Nothing outside `run/` compares a backend's name. Importing this
module imports no runtime, nor numpy.

A package adds a backend with an entry point of the group `qdebug.backends` that names a
`BackendSpec`; docs/recipes/add-a-backend.md shows how.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from qdebug.errors import BackendError, UsageError
from qdebug.wording import option

GROUP = "qdebug.backends"
"""The group of entry points that third-party packages add their backends to."""

DEFAULT = "simulation"


@dataclass(frozen=True)
class BackendSpec:
    """What is known of a backend before its runtime is imported.

    Attributes:
        name: as `backend` takes it.
        help: one line about it.
        factory: "module:function" that opens it. Gets `settings` and `context` as keywords, and
            returns a `run.base.Backend` or a `run.engine.EngineRuntime`.
        builds: it compiles the candidate into an engine of its own, which is compared with the
            simulation. Without, it is the simulation.
        audits: it says in which precision each layer was built.
        profiles: it measures the time of each layer.
        precisions: those it has kernels for, of `types.Precision`.
        provider_precisions: those that other execution providers than the CPU's may have kernels
            for, besides. What one lacks it refuses, or leaves to the CPU's, which is told.
        symmetric: its INT8 is signed with zero point 0, and nothing else.
        settings: names of the engine settings it takes; all others are refused.
        context: which of "folder" (a Path to keep files in), "cached" (whether engines may be taken
            from there), "threads" (how many to use on the CPU; None, as in the main
            process: all that it may use), "sessions" (the `run.options.SessionSettings` of those
            that ONNX Runtime executes) and "progress" (a ProgressCallback) its factory takes as
            well.
        modules: what must be importable.
        distributions: packages that any of them may come from, for the version.
        install: how to get it.
        probe: "module:function" that tells what an installed library can do on this machine: gets
            its version, returns `(works, detail, next step)`. "" where being installed suffices.
    """

    name: str
    help: str
    factory: str
    builds: bool = True
    audits: bool = False
    profiles: bool = False
    precisions: tuple[str, ...] = ("fp32", "int8")
    provider_precisions: tuple[str, ...] = ()
    symmetric: bool = False
    settings: frozenset[str] = frozenset()
    context: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    distributions: tuple[str, ...] = ()
    install: str = ""
    probe: str = ""

    @property
    def capabilities(self) -> str:
        """What it can do, in words."""
        words = [word for name, word in _ABLE.items() if self.can(name)]
        return f"{', '.join(words)}; {', '.join(p.upper() for p in self.precisions)}"

    def can(self, capability: str) -> bool:
        """Whether it has one of CAPABILITIES."""
        return bool(getattr(self, capability))

    @property
    def installed(self) -> bool:
        """Whether every module it needs can be found. None is imported."""
        return all(name in sys.modules or _is_importable(name) for name in self.modules)

    def open(self, settings: Mapping[str, Any] | None = None, **context: Any) -> Any:
        """Call the factory.

        Args:
            settings: by name; those that the backend does not take are left out.
            context: see BackendSpec.context; likewise.

        Raises:
            UsageError: a module that it needs is not installed.
            QdebugError: the factory's own.
        """
        if not self.installed:
            raise UsageError(
                f"the backend '{self.name}' is not installed", self.install, code=NOT_INSTALLED
            )
        taken = self.settings - FILES_TO_WRITE
        given = {k: v for k, v in (settings or {}).items() if k in taken}
        given |= {k: v for k, v in context.items() if k in self.context}
        return self.resolve(self.factory)(**given)

    def resolve(self, path: str) -> Callable[..., Any]:
        """The function that `path`, "module:function", names.

        Raises:
            BackendError: there is no such function.
        """
        module, _, function = path.partition(":")
        try:
            found: Callable[..., Any] = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError) as error:
            raise BackendError(
                f"the backend '{self.name}' cannot be loaded: {path}: {error}",
                self.install,
                code="QD-BACKEND-PLUGIN",
            ) from error
        return found

    def check_settings(self, given: Iterable[str]) -> None:
        """Refuse settings that the backend does not take.

        Raises:
            UsageError: names the first of them, and the backends that take it.
        """
        for name in given:
            if name in self.settings:
                continue
            what = "does not have this setting" if self.builds else CAPABILITIES["builds"]
            use = _use(takers(name))
            raise UsageError(
                f"{option(name)}: {option('backend', self.name)} {what}",
                f"{f'{use}, or drop' if use else 'Drop'} {option(name)}.",
                code="QD-USAGE-BACKEND-SETTING",
            )

    def require(self, capability: str, wanted_by: str) -> None:
        """Refuse what needs one of CAPABILITIES, if the backend does not have it.

        Args:
            wanted_by: what asks for it, as the user wrote it.

        Raises:
            UsageError: names the backends that have it.
        """
        if self.can(capability):
            return
        use = _use([s.name for s in specs() if s.can(capability)])
        raise UsageError(
            f"{wanted_by}: {option('backend', self.name)} {CAPABILITIES[capability]}",
            f"{use}." if use else "",
            code="QD-USAGE-BACKEND-CAPABILITY",
        )

    def precisions_on(self, provider: str | None) -> tuple[str, ...]:
        """Its precisions on an execution provider; None is the CPU's."""
        named = (provider or "cpu").lower().removesuffix("executionprovider")
        return self.precisions + (() if named == "cpu" else self.provider_precisions)

    def check_precisions(self, wanted: Iterable[str], provider: str | None = None) -> None:
        """Refuse precisions that it has no kernels for: it would silently run other ones.

        Raises:
            UsageError: names the first of them.
        """
        present = self.precisions_on(provider)
        absent = [p for p in dict.fromkeys(wanted) if p not in present]
        if absent:
            raise UsageError(
                f"{option('backend', self.name)} has no {absent[0].upper()} kernels, and layers "
                f"are to run in {absent[0].upper()}",
                f"Leave out {option('backend')}: the simulation runs it. This backend has kernels "
                f"for {', '.join(p.upper() for p in present)}.",
                code="QD-USAGE-BACKEND-PRECISION",
            )


NOT_INSTALLED = "QD-USAGE-BACKEND-NOT-INSTALLED"

CAPABILITIES: Mapping[str, str] = {
    "builds": "builds no engines",
    "audits": "does not tell the precisions that layers were built in",
    "profiles": "does not measure the time of each layer",
}
"""The flags of a BackendSpec, and what a message says of a backend without it."""

_ABLE: Mapping[str, str] = {
    "builds": "compiles engines",
    "audits": "tells each layer's precision",
    "profiles": "measures each layer's time",
}
"""The flags of a BackendSpec, in words."""

FILES_TO_WRITE = frozenset({"save_engine", "save_log"})
"""Settings that the pipeline carries out itself, with what `EngineRuntime.build` gives."""

_BUILDER = FILES_TO_WRITE | {
    "capture",
    *("optimization_level", "workspace", "tactic_sources", "tf32"),
    *("sparsity", "plugin", "refit", "version_compatible", "build_timeout"),
}

_BUILT_IN = (
    BackendSpec(
        DEFAULT,
        "on the CPU, exactly as quantized: what a precision costs by itself",
        "qdebug.backends.simulation:SimulationBackend",
        builds=False,
        precisions=("fp32", "fp16", "bf16", "a16w8", "fp8", "int8", "w8", "w4"),
        modules=("onnxruntime",),
        distributions=("onnxruntime", "onnxruntime-gpu"),
        install="pip install onnxruntime",
    ),
    BackendSpec(
        "onnxruntime",
        "ONNX Runtime as deployed, with its own INT8 kernels",
        "qdebug.backends.onnxruntime:OnnxRuntimeBackend",
        audits=True,
        profiles=True,
        precisions=("fp32", "int8", "int4", "w8", "w4"),
        provider_precisions=("fp16", "bf16", "a16w8", "fp8"),
        settings=FILES_TO_WRITE | {"provider", "provider_option"},
        context=("threads", "sessions"),
        modules=("onnxruntime",),
        distributions=("onnxruntime", "onnxruntime-gpu"),
        install="pip install onnxruntime",
    ),
    BackendSpec(
        "openvino",
        "OpenVINO as deployed, with its own INT8 kernels",
        "qdebug.backends.openvino:OpenVINOBackend",
        audits=True,
        profiles=True,
        settings=FILES_TO_WRITE,
        context=("threads",),
        modules=("openvino",),
        distributions=("openvino",),
        install="pip install openvino",
    ),
    BackendSpec(
        "tensorrt-rtx",
        "TensorRT for RTX: builds engines anywhere, runs them on an NVIDIA GPU",
        "qdebug.backends.tensorrt.process:open_rtx",
        audits=True,
        profiles=True,
        precisions=("fp32", "fp16", "bf16", "fp8", "int8", "w8", "w4"),
        symmetric=True,
        settings=_BUILDER | {"compute_capability"},
        context=("folder", "cached", "sessions", "progress"),
        modules=("tensorrt_rtx",),
        distributions=("tensorrt-rtx-cu13", "tensorrt-rtx"),
        install="pip install tensorrt-rtx-cu13",
        probe="qdebug.backends.tensorrt.probe:probe_rtx",
    ),
    BackendSpec(
        "tensorrt",
        "TensorRT 10 and 11: builds and runs engines on an NVIDIA GPU",
        "qdebug.backends.tensorrt.process:open_classic",
        audits=True,
        profiles=True,
        precisions=("fp32", "fp16", "bf16", "fp8", "int8"),
        symmetric=True,
        settings=_BUILDER | {"typing", "timing_cache"},
        context=("folder", "cached", "sessions", "progress"),
        modules=("tensorrt",),
        distributions=("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
        install="pip install tensorrt pycuda, on a machine with an NVIDIA GPU and its driver; "
        "without one, use tensorrt-rtx",
        probe="qdebug.backends.tensorrt.probe:probe_classic",
    ),
)


_LITERAL = {spec.name: spec for spec in _BUILT_IN}


def backend_names() -> tuple[str, ...]:
    """Every backend, the default first, then the built-in ones, then those of other packages."""
    return (*_LITERAL, *(name for name in _added() if name not in _LITERAL))


def built_in() -> tuple[BackendSpec, ...]:
    """Those of this package."""
    return _BUILT_IN


def specs() -> tuple[BackendSpec, ...]:
    """All of them that can be read, in the order of `backend_names`; a broken entry point is left
    out, and `spec_of` says why."""
    found = []
    for name in backend_names():
        try:
            found.append(spec_of(name))
        except BackendError:
            continue
    return tuple(found)


def takers(setting: str) -> tuple[str, ...]:
    """The backends that take an engine setting."""
    return tuple(spec.name for spec in specs() if setting in spec.settings)


def only(setting: str) -> str:
    """Which backends take an engine setting, for help texts that are about TensorRT: "" where its
    backends do, and others do not."""
    found = takers(setting)
    both = {spec.name for spec in built_in() if spec.symmetric}
    return "" if set(found) == both else f" Only with {' and '.join(found)}."


def usage(*capabilities: str) -> str:
    """Every backend that has these capabilities, with what it is, for help texts."""
    return "; ".join(
        f"{spec.name} ({spec.help})" for spec in specs() if all(map(spec.can, capabilities))
    )


def default_builder(setting: str) -> BackendSpec:
    """The first installed backend that builds engines and takes `setting`; the first of all such
    backends where none is installed."""
    found = [spec for spec in specs() if spec.builds and setting in spec.settings]
    return next((spec for spec in found if spec.installed), found[0])


def spec_of(name: str) -> BackendSpec:
    """The backend called `name`.

    Raises:
        UsageError: there is none.
        BackendError: an entry point that does not load, or names something else.
    """
    if name in _LITERAL:
        return _LITERAL[name]
    entry = _added().get(name)
    if entry is None:
        close = difflib.get_close_matches(name, backend_names(), n=1)
        hint = f"Did you mean '{close[0]}'? " if close else ""
        raise UsageError(
            f"{option('backend')}: unknown backend '{name}'",
            f"{hint}Known: {', '.join(backend_names())}.",
            code="QD-USAGE-BACKEND-UNKNOWN",
        )
    try:
        spec = entry.load()
    except Exception as error:
        raise BackendError(
            f"the entry point '{name}' of {GROUP} cannot be loaded: {error}",
            f"Repair or remove the package that adds it ({entry.value}).",
            code="QD-BACKEND-PLUGIN",
        ) from error
    if not isinstance(spec, BackendSpec) or spec.name != name or not spec.builds:
        raise BackendError(
            f"the entry point '{name}' of {GROUP} is not a BackendSpec of that name that builds",
            f"Repair or remove the package that adds it ({entry.value}).",
            code="QD-BACKEND-PLUGIN",
        )
    return spec


def _use(names: Iterable[str]) -> str:
    """Advice to choose one of these backends; "" for none."""
    listed = " or ".join(option("backend", name) for name in names)
    return f"Use {listed}" if listed else ""


def _is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # by a finder that refuses it
        return False


def _added() -> Mapping[str, EntryPoint]:
    """Those of other packages. A built-in backend cannot be replaced."""
    return _entry_points(tuple(sys.path))


@cache
def _entry_points(path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """Those of the packages on `path`, which takes ten milliseconds to search."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}
