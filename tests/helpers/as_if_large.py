"""Every size limit at its smallest: small networks then take the ways of large ones.

Weights of a real size lie in files, are mapped and are not folded; samples come in several batches,
activations in several groups; files are written in several parts. The networks of the tests are
small enough for none of that, so each limit is a value that tests can set, here.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import pytest

import qdebug

SMALLEST: dict[str, Any] = {
    # weights: constants in files, mapped, and dequantized as they are read
    "qdebug.network.weights:LARGE_BYTES": 129,  # ONNX Runtime reads shapes from the message
    "qdebug.network.load:_BLOCK": 64,
    "qdebug.backends.simulation:MAPPED_ONLY_BYTES": 0,
    # executions: few samples each, and nothing kept between them
    "qdebug.backends.sizing:_BATCH_BYTES": 1,
    "qdebug.backends.sizing:_LARGEST_BATCH": 3,
    "qdebug.run.runner:_HELD_BYTES": 0,
    "qdebug.analyse.tensor_errors:_RAW_SHARE": 0,
    "qdebug.network.samples.feeds:_CACHED_FEEDS": 1,
    # analysis: few layers and samples are looked at closely
    "qdebug.analyse.diagnose:_ENOUGH_VALUES": 1,
    "qdebug.calibrators.gather:ROOM": 1 << 10,
    "qdebug.metrics.sums:_RUN": 16,
    "qdebug.metrics.sums:_TILE": 64,
    "qdebug.decide.remedies.moments:_CHUNK_BYTES": 1 << 10,
    "qdebug.decide.remedies.moments:_BLOCK": 8,
    # files
    "qdebug.page.html:_CHUNK_BYTES": 1 << 10,
}
"""Limits by module and name; see `as_if_large`."""

LEAST_WORK: dict[str, Any] = {
    "qdebug.analyse.effect.effects:_LEAST_RUNS": 1,
    "qdebug.analyse.effect.effects:_MOST_RUNS": 1,
    "qdebug.analyse.effect.effects:_LEAST_MACS": 1.0,
    "qdebug.analyse.effect.effects:_MOST_MACS": 1.0,
    "qdebug.analyse.effect.effects:_LEAST_LEADERS": 1,
    "qdebug.analyse.effect.effects:_LEAST_SAMPLES": 1,
    "qdebug.analyse.effect.effects:_EACH": 1,
    "qdebug.analyse.effect.effects:_FIRST_GROUPS": 2,
    "qdebug.analyse.effect.effects:_HALVED_AT_ONCE": 1,
    "qdebug.analyse.tensor_errors:_LOCAL_MACS": 1.0,
    "qdebug.analyse.tensor_errors:_PARTS_MACS": 1.0,
    "qdebug.analyse.diagnose:MOST_LAYERS": 1,
}
"""What measurements may cost, at the least: layers are then measured in groups, on samples that are
drawn, as those of a network too large to measure each."""


def as_if_large(patch: pytest.MonkeyPatch, limits: Mapping[str, Any] = SMALLEST) -> None:
    """Set every limit to its smallest, in this process, wherever it was imported."""
    for module in pkgutil.walk_packages(qdebug.__path__, "qdebug."):
        if not module.name.endswith("__main__"):
            import_module(module.name)  # or it would keep what it imports now
    for where, value in limits.items():
        home, name = where.split(":")
        assert hasattr(sys.modules[home], name), where
        for module_name, loaded in list(sys.modules.items()):
            if module_name.startswith("qdebug.") and (
                module_name == home or _is_of(loaded, home, name)
            ):
                patch.setattr(loaded, name, value)


def _is_of(module: Any, home: str, name: str) -> bool:
    """Whether a module imported this limit from where it is defined."""
    if name.startswith("_") or name not in vars(module):
        return False
    return bool(vars(module)[name] == getattr(sys.modules[home], name))
