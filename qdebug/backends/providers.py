"""Execution providers of ONNX Runtime: those it was built with, and those that packages add.

A package that adds one (a plugin) has a module that says where its library is, `get_library_path`,
and what its providers are called, `get_ep_names` or `get_ep_name`:
https://onnxruntime.ai/docs/execution-providers/plugin-ep-libraries/packaging.html. ONNX Runtime
finds no such package by itself. The modules of those that exist (onnxruntime_qnn,
onnxruntime_ep_openvino, onnxruntime_ep_nv_tensorrt_rtx, onnxruntime_ep_webgpu) begin alike, so all
that do are looked at; the source says whether one is a plugin, without importing it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

from qdebug.errors import BackendError, UsageError
from qdebug.wording import option

CPU = "CPUExecutionProvider"
_SUFFIX = "ExecutionProvider"
_PREFIX = "onnxruntime_"
_DEVICES = ("NPU", "GPU", "CPU")
"""The order in which a provider that has several devices gets one, as of ONNX Runtime's policies
that prefer an NPU."""


@dataclass(frozen=True)
class Provider:
    """An execution provider, ready for sessions.

    Attributes:
        name: such as "CUDAExecutionProvider".
        options: its own, by name.
        device: of a plugin, an OrtEpDevice; None of one that ONNX Runtime was built with.
        package: of a plugin, with its version, for people; "" otherwise.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    device: Any = None
    package: str = ""

    @property
    def label(self) -> str:
        """With its options and its device, for people and for keys."""
        told = ", ".join(f"{k}={v}" for k, v in self.options.items())
        where = f" on {self.device.device.type.name}" if self.device is not None else ""
        return f"{self.name}{f' ({told})' if told else ''}{where}"

    def session(self, model: bytes, options: Any) -> Any:
        """An InferenceSession of it, with the CPU's provider for what it does not take.

        Args:
            options: SessionOptions, which are changed.

        Raises:
            BackendError: the plugin does not open, perhaps for want of an option.
        """
        import onnxruntime as ort

        if self.device is None:
            own = [] if self.name == CPU else [(self.name, dict(self.options))]
            return ort.InferenceSession(model, options, providers=[*own, CPU], enable_fallback=0)
        options.add_provider_for_devices([self.device], dict(self.options))
        try:
            return ort.InferenceSession(model, options, enable_fallback=0)
        except Exception as error:  # ONNX Runtime's own kinds
            if "CreateProvider" not in str(error):
                raise
            reason = " ".join(str(error).split()).rpartition(" : FAIL : ")[2]
            raise BackendError(
                f"{self.label} of {self.package} cannot be opened: {reason}",
                f"Its documentation lists its options: {option('provider_option')} sets one, such "
                "as backend_type=htp of QNN.",
                code="QD-BACKEND-PROVIDER",
            ) from error


def provider_of(asked: str | None, options: Sequence[str] = ()) -> Provider:
    """The provider that `asked` names; None is the CPU's.

    Args:
        asked: with or without "ExecutionProvider", in any case; of one with several devices also
            "NAME:GPU".
        options: for it, as "key=value".

    Raises:
        UsageError: there is none of that name, it has no such device, an option is no pair, or is
            for the CPU's.
        BackendError: the package that adds it cannot be loaded.
    """
    import onnxruntime as ort

    pairs = dict(_pair(text) for text in options)
    name, _, device = (asked or CPU).partition(":")
    wanted = _short(name)
    for built_in in built_in_providers() if not device else ():
        if _short(built_in) == wanted:
            if built_in == CPU and pairs:
                raise UsageError(
                    f"{option('provider_option')}: the CPU's provider has no options",
                    f"Name the provider that it is for with {option('provider')}.",
                    code="QD-USAGE-PROVIDER",
                )
            return Provider(built_in, pairs)
    added: list[str] = []
    broken: list[str] = []
    # The likeliest first: importing one may load large libraries.
    for module in sorted(plugin_modules(), key=lambda module: wanted not in module):
        try:
            plugin = _imported(module)
        except BackendError:
            if wanted in module:
                raise
            broken.append(package_of(module))
            continue
        names = _names(plugin)
        added += names
        if any(wanted.partition(".")[0] == _short(n) for n in names):
            return _plugged(plugin, names, wanted, device, pairs)
    unread = f" {', '.join(broken)} cannot be loaded." if broken else ""
    raise UsageError(
        f"{option('provider')}: ONNX Runtime {ort.__version__} has no provider '{asked}', and no "
        "installed package adds it",
        f"It has {', '.join([*built_in_providers(), *added])}.{unread} Packages that add one are "
        "called onnxruntime-ep-NAME, such as onnxruntime-ep-openvino, or onnxruntime-qnn.",
        code="QD-USAGE-PROVIDER",
    )


def built_in_providers() -> tuple[str, ...]:
    """What this ONNX Runtime was built with."""
    import onnxruntime as ort

    return tuple(p for p in ort.get_available_providers() if p not in _registered())


def plugin_modules() -> tuple[str, ...]:
    """Modules that can be imported and say where the library of a provider is. None is."""
    alike = (m for m in pkgutil.iter_modules() if m.name.startswith(_PREFIX))
    return tuple(sorted({m.name for m in alike if _is_plugin(m)}))


def plugin_devices(module: str) -> tuple[str, ...]:
    """Its providers, each with the kinds of devices that it finds here: "QNN on CPU".

    Raises:
        BackendError: it cannot be loaded.
    """
    plugin = _imported(module)
    return tuple(
        f"{d.ep_name.replace(_SUFFIX, '')} on {d.device.type.name}"
        for d in _devices(plugin, _names(plugin))
    )


def package_of(module: str) -> str:
    """The package that has a module, and its version, by the convention of their names."""
    name = module.replace("_", "-")
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return name


def _plugged(
    plugin: ModuleType, names: Sequence[str], wanted: str, kind: str, options: Mapping[str, str]
) -> Provider:
    """A provider that `plugin` adds, on a device of this kind; "" takes the first of _DEVICES."""
    devices = [d for d in _devices(plugin, names) if _short(d.ep_name) == wanted]
    kinds = [d.device.type.name for d in devices]
    if kind.upper() not in ["", *kinds] or not devices:
        has = f"only {', '.join(dict.fromkeys(kinds))}" if kinds else "no device"
        raise UsageError(
            f"{option('provider')}: {names[0]} of {package_of(plugin.__name__)} finds {has} on "
            "this machine",
            "Name a device that it finds." if kinds else "'qdebug doctor' lists what it can run.",
            code="QD-USAGE-PROVIDER",
        )
    order = [kind.upper()] if kind else _DEVICES
    chosen = min(
        devices,
        key=lambda d: (
            order.index(d.device.type.name) if d.device.type.name in order else len(order)
        ),
    )
    return Provider(chosen.ep_name, options, chosen, package_of(plugin.__name__))


def _devices(plugin: ModuleType, names: Sequence[str]) -> list[Any]:
    """What the library of `plugin`, whose providers have these names, finds here, as OrtEpDevice.

    Raises:
        BackendError: ONNX Runtime cannot load it.
    """
    import onnxruntime as ort

    if not hasattr(ort, "register_execution_provider_library"):
        raise BackendError(
            f"ONNX Runtime {ort.__version__} loads no packages with execution providers",
            "pip install 'onnxruntime>=1.23'",
            code="QD-BACKEND-PROVIDER",
        )
    registered = names[0]
    if registered not in _registered():
        with _loading(plugin.__name__):
            path = plugin.get_library_path()
            try:  # under the name that the package gives: QNN's provider is called by it
                ort.register_execution_provider_library(registered, path)
            except Exception as error:  # of a library without devices nothing else tells
                if "already registered" not in str(error):
                    raise
    return [d for d in ort.get_ep_devices() if d.ep_name.startswith(tuple(names))]


def _registered() -> set[str]:
    """The providers of libraries that this process has registered and that found a device."""
    import onnxruntime as ort

    devices = ort.get_ep_devices() if hasattr(ort, "get_ep_devices") else []
    return {d.ep_name for d in devices} - {CPU}


def _imported(module: str) -> ModuleType:
    with _loading(module):
        return importlib.import_module(module)


@contextmanager
def _loading(module: str) -> Iterator[None]:
    """Maps whatever a package raises, and ONNX Runtime's own kinds, to a BackendError."""
    try:
        yield
    except Exception as error:
        raise BackendError(
            f"the execution provider of {package_of(module)} cannot be loaded: {error}",
            "Install it anew for this ONNX Runtime, or remove it.",
            code="QD-BACKEND-PROVIDER",
        ) from error


def _names(plugin: ModuleType) -> list[str]:
    """As it calls them; the first stands for its library."""
    if hasattr(plugin, "get_ep_names"):
        return list(plugin.get_ep_names())
    return [plugin.get_ep_name()]


def _is_plugin(module: pkgutil.ModuleInfo) -> bool:
    spec = module.module_finder.find_spec(module.name, None)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return False
    source = Path(spec.origin).read_text(encoding="utf-8", errors="replace")
    return "def get_library_path" in source


def _short(name: str) -> str:
    return name.replace(_SUFFIX, "").lower()


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError(
            f"{option('provider_option')}: '{text}' is no pair of a key and a value",
            f"Write {option('provider_option', 'backend_type=htp')}, for example.",
            code="QD-USAGE-PROVIDER",
        )
    return key, value
