"""What a run file says about where it came from."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from qdebug import __version__
from qdebug.network.samples import Samples
from qdebug.network.weights import model_digest
from qdebug.plan.pair import ModelPair

PACKAGES = ("onnxruntime", "onnxruntime-gpu", "onnx", "numpy", "h5py")


def manifest_of(
    settings: Mapping[str, object],
    pair: ModelPair,
    samples: Samples,
    operators_digest: str,
) -> dict[str, object]:
    """Hashes of model and samples, versions, device and settings; JSON types only."""
    return {
        "qdebug": __version__,
        "versions": package_versions(operators_digest),
        "python": sys.version.split()[0],
        "device": {"kind": "cpu", "machine": platform.machine(), "system": platform.platform()},
        "model": {
            "path": settings["model"],
            "sha256": pair.model.file.sha256,
            "digest": pair.model.file.digest,
            "opset": pair.reference.opset,
            "quantized": pair.model.quantized,
        },
        "samples": {"path": settings["inputs"], "count": samples.count, "digest": samples.digest},
        "settings": dict(settings),
    }


def reference_key(pair: ModelPair, samples: Samples, operators_digest: str) -> str:
    """A digest of all that decides the reference's activations: equal keys, equal activations."""
    versions = package_versions(operators_digest)
    parts = [
        model_digest(pair.reference.proto),
        samples.inputs_digest,
        str(samples.batch_size),  # where the user chose it; a chosen one is known to be harmless
        *(f"{name} {found}" for name, found in versions.items() if "runtime" in name),
        platform.machine(),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def package_versions(operators_digest: str) -> dict[str, str]:
    """Versions of the packages that decide results, and the digest of custom operators; "" where
    there are none."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    if operators_digest:
        found["onnxruntime custom operators"] = operators_digest
    return found
