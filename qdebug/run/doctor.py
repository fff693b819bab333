"""What this machine can run."""

from __future__ import annotations

import importlib.util
import platform
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from qdebug.run.stream import available_cores
from qdebug.run.tensorrt.execute.device import Device, find_device
from qdebug.run.tensorrt.library import LibraryKind, parse_version
from qdebug.run.tensorrt.probe import abilities, load_problem

REQUIRED = (
    "onnx",
    "onnxruntime",
    "onnxslim",
    "numpy",
    "scipy",
    "h5py",
    "polygraphy",
    "pydantic",
    "pyyaml",
    "rich",
    "typer",
)
OPTIONAL = (
    ("tensorrt_rtx", ("tensorrt-rtx-cu13", "tensorrt-rtx"), "pip install 'qdebug[tensorrt-rtx]'"),
    ("tensorrt", ("tensorrt", "tensorrt-cu13", "tensorrt-cu12"), "pip install 'qdebug[tensorrt]'"),
    ("pycuda", ("pycuda",), "pip install 'qdebug[tensorrt]' (needs the CUDA toolkit)"),
    ("dask", ("dask",), "pip install 'qdebug[distributed]'"),
)
_TENSORRT = {"tensorrt_rtx": LibraryKind.RTX, "tensorrt": LibraryKind.CLASSIC}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for.

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


def examine() -> tuple[Finding, ...]:
    """Everything that decides what qdebug can do here."""
    machine = f"{platform.system()} {platform.machine()}, {available_cores()} cores"
    findings = [
        Finding("machine", "ok", machine),
        Finding("Python", "ok", sys.version.split()[0]),
    ]
    findings += [_required(name) for name in REQUIRED]
    if not any(f.state == "missing" for f in findings):
        findings.append(_ort_agrees())
    device = find_device()
    for entry in OPTIONAL:
        found = _optional(*entry)
        findings.append(_with_abilities(found, device) if found.what in _TENSORRT else found)
    findings.append(_gpu(device))
    return tuple(findings)


def _required(name: str) -> Finding:
    try:
        return Finding(name, "ok", version(name))
    except PackageNotFoundError:
        return Finding(name, "missing", "not installed", f"pip install {name}")


def _optional(module: str, packages: tuple[str, ...], step: str) -> Finding:
    if importlib.util.find_spec(module) is None:
        return Finding(module, "absent", "not installed", step)
    for package in packages:
        try:
            return Finding(module, "ok", version(package))
        except PackageNotFoundError:
            continue
    return Finding(module, "ok", "installed")


def _ort_agrees() -> Finding:
    """Run one Q/DQ pair: is the simulation literal on this machine?"""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    from qdebug.plan.quantize import fake_quantize
    from qdebug.run.ort import OrtBackend

    scale = np.array(0.037, np.float32)
    values = np.linspace(-6, 6, 4097, dtype=np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], "q"),
            helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], "dq"),
        ],
        "probe",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4097])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4097])],
        [
            numpy_helper.from_array(scale, "scale"),
            numpy_helper.from_array(np.array(0, np.int8), "zero"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = OrtBackend().open(model, [])
    same = np.array_equal(session.run({"x": values})["y"], fake_quantize(values, scale))
    if same:
        return Finding("Q/DQ simulation", "ok", "ONNX Runtime rounds as the quantize contract says")
    return Finding(
        "Q/DQ simulation",
        "missing",
        "ONNX Runtime's QuantizeLinear differs from the quantize contract on this machine",
        "Try another onnxruntime version, and report this.",
    )


def _with_abilities(found: Finding, device: Device | str) -> Finding:
    """For a TensorRT library that is installed: does it load, what can it do here?"""
    if found.state != "ok":
        return found
    kind = _TENSORRT[found.what]
    problem, hint = load_problem(kind)
    if problem:
        return Finding(found.what, "absent", f"{found.detail}: {problem}", hint)
    text, step = abilities(kind, parse_version(found.detail), device)
    return Finding(found.what, "ok", f"{found.detail}: {text}", step)


def _gpu(device: Device | str) -> Finding:
    if isinstance(device, str):
        return Finding(
            "NVIDIA GPU", "absent", f"{device}: engines can be built for RTX, but not run"
        )
    capability = ".".join(map(str, device.compute_capability))
    detail = f"{device.count} × {device.name}, compute capability {capability}"
    return Finding("NVIDIA GPU", "ok", detail)
