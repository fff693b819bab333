"""qdebug: find out where, why and how cheaply to fix the accuracy an INT8 or FP16 network lost.

The names in `__all__` are the public API; every other module may change from one version to the
next. One function per command takes the options of that command as keywords:

    import qdebug

    result = qdebug.compare("model.onnx", inputs="samples.npz", calib_data="calib.npz")
    print(result.layers[0])  # the worst layer, with the causes of its error

Models, samples, metrics, calibrators and plans may be objects in memory. Importing qdebug imports
none of the numeric packages: that waits until one of its functions is used.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what editors and type checkers see of __getattr__ below
    from qdebug.api import *  # noqa: F403

# ONNX Runtime reports its use to Microsoft, and reads this once, when it is imported; calling its
# disable_telemetry_events() afterwards is too late. Who set the variable has decided already.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__version__ = "0.1.0"

_PUBLIC = {
    "qdebug.api": (
        "check", "init", "compare", "calibrate", "ranges", "bisect", "repair", "inspect", "sweep",
        "diff", "report", "view", "export", "doctor", "load_run", "open_samples",
    ),
    "qdebug.commands.framework.capture": ("capture",),
    "qdebug.config.look": (
        "CheckSettings", "InitSettings", "RangesSettings", "InspectSettings",
    ),
    "qdebug.config.compare": ("CompareSettings",),
    "qdebug.config.calibrate": ("CalibrateSettings",),
    "qdebug.config.search": ("BisectSettings", "RepairSettings"),
    "qdebug.config.sweep": ("SweepSettings",),
    "qdebug.config.report": (
        "DiffSettings", "ReportSettings", "ViewSettings", "ExportSettings",
    ),
    "qdebug.errors": (
        "QdebugError", "UsageError", "ModelError", "SampleError", "PlanError", "StoreError",
        "MetricError", "BackendError", "ClusterError",
    ),
    "qdebug.results.compare": (
        "CompareResult", "LayerResult", "OutputResult", "TensorResult", "Cause",
    ),
    "qdebug.results.check": ("CheckResult",),
    "qdebug.results.calibrate": ("CalibrateResult",),
    "qdebug.results.ranges": ("RangesResult",),
    "qdebug.results.report": ("ReportResult",),
    "qdebug.commands.report.view": ("View",),
    "qdebug.results.diff": ("DiffResult",),
    "qdebug.results.init": ("InitResult",),
    "qdebug.results.inspect": ("InspectResult",),
    "qdebug.results.sweep": ("SweepResult",),
    "qdebug.decide.bisect.result": ("BisectResult",),
    "qdebug.decide.remedies.result": ("RepairResult",),
    "qdebug.backends.doctor": ("DoctorResult",),
    "qdebug.plan.export": ("ExportResult",),
    "qdebug.results.recorded": ("Run",),
    "qdebug.network.preprocessing": ("Preprocessing",),
    "qdebug.network.samples": ("Samples",),
    "qdebug.plan.plan": ("PrecisionPlan", "TensorRange"),
    "qdebug.types": ("Precision", "Progress"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'qdebug' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


import_module("qdebug.display.views")  # results know nothing of how they are shown
