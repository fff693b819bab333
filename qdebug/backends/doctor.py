"""What this machine can run."""

from __future__ import annotations

import importlib.util
import platform
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import ClassVar

from qdebug.backends.providers import (
    built_in_providers,
    package_of,
    plugin_devices,
    plugin_modules,
)
from qdebug.backends.registry import DEFAULT, BackendSpec, specs
from qdebug.backends.stream import available_cores
from qdebug.backends.tensorrt.execute.device import Device, find_device
from qdebug.errors import BackendError
from qdebug.result import Result, in_json

REQUIRED = (
    "onnx",
    "onnxruntime",
    "ml-dtypes",
    "numpy",
    "scipy",
    "h5py",
    "polygraphy",
    "pydantic",
    "pyyaml",
    "rich",
    "cyclopts",
    "annotated-types",
)
OPTIONAL = (("pycuda", ("pycuda",), "pip install pycuda (needs the CUDA toolkit)"),)
"""Requirements beyond the backends of the registry: module, distributions, how to install it."""


@dataclass(frozen=True)
class Finding:
    """One thing that was checked.

    Attributes:
        what: its name.
        state: "ok", "missing" (something qdebug needs) or "absent" (something it can do without).
        detail: its version, or what its absence means.
        next_step: how to get it; "" when it is there.
    """

    what: str
    state: str
    detail: str
    next_step: str = ""


@dataclass(frozen=True, repr=False)
class DoctorResult(Result):
    """What this machine can run, and what is missing for the rest."""

    SCHEMA: ClassVar[str] = "qdebug.doctor/1"
    ROWS: ClassVar[str] = "findings"

    findings: tuple[Finding, ...]

    @property
    @in_json
    def ready(self) -> bool:
        """Nothing that qdebug needs is missing."""
        return all(f.state != "missing" for f in self.findings)

    def headline(self) -> str:
        """Whether it is ready, and what is absent."""
        absent = [f.what for f in self.findings if f.state != "ok"]
        text = "ready" if self.ready else "not ready"
        return f"{text}, without {', '.join(absent)}" if absent else text


def examine() -> DoctorResult:
    """Everything that decides what qdebug can do here."""
    machine = f"{platform.system()} {platform.machine()}, {available_cores()} cores"
    findings = [
        Finding("machine", "ok", machine),
        Finding("Python", "ok", sys.version.split()[0]),
    ]
    findings += [_required(name) for name in REQUIRED]
    if not any(f.state == "missing" for f in findings):
        findings.append(_ort_agrees())
    findings += [_backend(spec) for spec in specs() if spec.name != DEFAULT]
    names = ", ".join(name.removesuffix("ExecutionProvider") for name in built_in_providers())
    findings.append(Finding("execution providers", "ok", f"of ONNX Runtime: {names}"))
    findings += map(_plugin, plugin_modules())
    findings += [_optional(*entry) for entry in OPTIONAL]
    findings.append(_gpu(find_device()))
    return DoctorResult(tuple(findings))


def _required(name: str) -> Finding:
    try:
        return Finding(name, "ok", version(name))
    except PackageNotFoundError:
        return Finding(name, "missing", "not installed", f"pip install {name}")


def _optional(module: str, packages: tuple[str, ...], step: str) -> Finding:
    if importlib.util.find_spec(module) is None:
        return Finding(module, "absent", "not installed", step)
    return Finding(module, "ok", _version(packages) or "installed")


def _version(distributions: Sequence[str]) -> str:
    for name in distributions:
        with suppress(PackageNotFoundError):
            return version(name)
    return ""


def _backend(spec: BackendSpec) -> Finding:
    """Is it installed, does it load, what can it do here?"""
    what = f"backend {spec.name}"
    if not spec.installed:
        return Finding(what, "absent", "not installed", spec.install)
    found = _version(spec.distributions) or "installed"
    if not spec.probe:
        return Finding(what, "ok", f"{found}: {spec.capabilities}")
    works, detail, step = spec.resolve(spec.probe)(found)
    return Finding(
        what,
        "ok" if works else "absent",
        f"{found}: {detail} ({spec.capabilities})",
        step,
    )


def _plugin(module: str) -> Finding:
    """Does a package with execution providers load, and what does it find here?"""
    package = package_of(module)
    what = f"provider {package}"
    try:
        devices = plugin_devices(module)
    except BackendError as error:
        return Finding(what, "absent", error.message, error.hint)
    if not devices:
        return Finding(what, "absent", "finds no device here")
    return Finding(what, "ok", ", ".join(devices))


_PAIR = """<ir_version: 8, opset_import: ["": 13]>
probe (float[4097] x) => (float[4097] y) <float scale = {0.037}, int8 zero = {0}> {
    q = QuantizeLinear(x, scale, zero)
    y = DequantizeLinear(q, scale, zero)
}"""


def _ort_agrees() -> Finding:
    """Run one Q/DQ pair: does ONNX Runtime round as specified on this machine?"""
    import numpy as np
    from onnx import parser

    from qdebug.backends.simulation import SimulationBackend
    from qdebug.formats.registry import INT8

    values = np.linspace(-6, 6, 4097, dtype=np.float32)
    model = parser.parse_model(_PAIR)
    session = SimulationBackend().open(model, [])
    same = np.array_equal(
        session.run({"x": values})["y"], INT8.quantize(values, np.asarray(0.037, np.float32))
    )
    if same:
        return Finding("Q/DQ simulation", "ok", "ONNX Runtime rounds half to even, as specified")
    return Finding(
        "Q/DQ simulation",
        "missing",
        "ONNX Runtime's QuantizeLinear does not quantize as specified on this machine",
        "Try another onnxruntime version, and report this.",
    )


def _gpu(device: Device | str) -> Finding:
    if isinstance(device, str):
        return Finding(
            "NVIDIA GPU", "absent", f"{device}: engines can be built for RTX, but not run"
        )
    capability = ".".join(map(str, device.compute_capability))
    detail = f"{device.count} × {device.name}, compute capability {capability}"
    return Finding("NVIDIA GPU", "ok", detail)
