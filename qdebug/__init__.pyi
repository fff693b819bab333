# Written by scripts/make_stub.py from what qdebug/config declares: run it again.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, overload

import onnx
from numpy.typing import ArrayLike

from qdebug.backends.doctor import DoctorResult as DoctorResult
from qdebug.commands.framework.capture import capture as capture
from qdebug.commands.report.view import View as View
from qdebug.config.bisect import BisectSettings as BisectSettings
from qdebug.config.calibrate import CalibrateSettings as CalibrateSettings
from qdebug.config.check import CheckSettings as CheckSettings
from qdebug.config.compare import CompareSettings as CompareSettings
from qdebug.config.diff import DiffSettings as DiffSettings
from qdebug.config.export import ExportSettings as ExportSettings
from qdebug.config.init import InitSettings as InitSettings
from qdebug.config.inspect import InspectSettings as InspectSettings
from qdebug.config.ranges import RangesSettings as RangesSettings
from qdebug.config.repair import RepairSettings as RepairSettings
from qdebug.config.report import ReportSettings as ReportSettings
from qdebug.config.sweep import SweepSettings as SweepSettings
from qdebug.config.view import ViewSettings as ViewSettings
from qdebug.decide.bisect.result import BisectResult as BisectResult
from qdebug.decide.remedies.result import RepairResult as RepairResult
from qdebug.errors import BackendError as BackendError
from qdebug.errors import ClusterError as ClusterError
from qdebug.errors import MetricError as MetricError
from qdebug.errors import ModelError as ModelError
from qdebug.errors import PlanError as PlanError
from qdebug.errors import QdebugError as QdebugError
from qdebug.errors import SampleError as SampleError
from qdebug.errors import StoreError as StoreError
from qdebug.errors import UsageError as UsageError
from qdebug.network.preprocessing import Preprocessing as Preprocessing
from qdebug.network.samples import Samples as Samples
from qdebug.plan.export import ExportResult as ExportResult
from qdebug.plan.plan import PrecisionPlan as PrecisionPlan
from qdebug.plan.plan import TensorRange as TensorRange
from qdebug.results.calibrate import CalibrateResult as CalibrateResult
from qdebug.results.check import CheckResult as CheckResult
from qdebug.results.compare import Cause as Cause
from qdebug.results.compare import CompareResult as CompareResult
from qdebug.results.compare import LayerResult as LayerResult
from qdebug.results.compare import OutputResult as OutputResult
from qdebug.results.compare import TensorResult as TensorResult
from qdebug.results.diff import DiffResult as DiffResult
from qdebug.results.init import InitResult as InitResult
from qdebug.results.inspect import InspectResult as InspectResult
from qdebug.results.ranges import RangesResult as RangesResult
from qdebug.results.recorded import Run as Run
from qdebug.results.report import ReportResult as ReportResult
from qdebug.results.sweep import SweepResult as SweepResult
from qdebug.types import Precision as Precision
from qdebug.types import Progress as Progress

__version__: str
# fmt: off
__all__ = [
    "BackendError", "BisectResult", "BisectSettings", "CalibrateResult", "CalibrateSettings",
    "Cause", "CheckResult", "CheckSettings", "ClusterError", "CompareResult", "CompareSettings",
    "DiffResult", "DiffSettings", "DoctorResult", "ExportResult", "ExportSettings", "InitResult",
    "InitSettings", "InspectResult", "InspectSettings", "LayerResult", "MetricError", "ModelError",
    "OutputResult", "PlanError", "Precision", "PrecisionPlan", "Preprocessing", "Progress",
    "QdebugError", "RangesResult", "RangesSettings", "RepairResult", "RepairSettings",
    "ReportResult", "ReportSettings", "Run", "SampleError", "Samples", "StoreError", "SweepResult",
    "SweepSettings", "TensorRange", "TensorResult", "UsageError", "View", "ViewSettings", "bisect",
    "calibrate", "capture", "check", "compare", "diff", "doctor", "export", "init", "inspect",
    "load_run", "open_samples", "ranges", "repair", "report", "sweep", "view"
]
# fmt: on

Feeds = Mapping[str, ArrayLike]
Path = str | os.PathLike[str]

@overload
def check(
    model: str | os.PathLike[str] | onnx.ModelProto,
    *,
    inputs: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds] | None = None,
    calib_data: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds] | None = None,
    preprocess: str | os.PathLike[str] | Preprocessing | None = None,
    shape: Sequence[str] = (),
    skip_bad: bool = False,
    samples: int = 32,
    framework: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds] | None = None,
    metric: str | Callable[..., float] | None = None,
    decode: str | None = None,
    max_drop: float | None = None,
    custom_op_library: Sequence[str | os.PathLike[str]] = (),
    progress: Callable[[Progress], None] | None = None,
) -> CheckResult:
    """Look at a model and its samples first: operators, preprocessing, labels, their number.

    The keywords: see `CheckSettings`.

    Raises:
        QdebugError: bad input, or a runtime that failed.
    """

@overload
def check(
    model: CheckSettings, *, progress: Callable[[Progress], None] | None = None
) -> CheckResult: ...
@overload
def init(
    model: str | os.PathLike[str] | onnx.ModelProto,
    *,
    inputs: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds] | None = None,
    preprocess: str | os.PathLike[str] | Preprocessing | None = None,
    shape: Sequence[str] = (),
    skip_bad: bool = False,
    metric: str | Callable[..., float] | None = None,
    output: str | os.PathLike[str] = "qdebug.yaml",
    force: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> InitResult:
    """Look at a model and its samples, and write a configuration that compare runs at once.

    The keywords: see `InitSettings`.

    Raises:
        QdebugError: bad input, or a runtime that failed.
    """

@overload
def init(
    model: InitSettings, *, progress: Callable[[Progress], None] | None = None
) -> InitResult: ...
@overload
def compare(
    model: str | os.PathLike[str] | onnx.ModelProto | None = None,
    *,
    inputs: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds],
    calib_data: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds] | None = None,
    reference: str | os.PathLike[str] | onnx.ModelProto | None = None,
    preprocess: str | os.PathLike[str] | Preprocessing | None = None,
    shape: Sequence[str] = (),
    skip_bad: bool = False,
    samples: int | None = None,
    calib_samples: int | None = None,
    group: str | None = None,
    precision: Literal["w4", "w8", "int8", "fp8", "a16w8", "bf16", "fp16", "fp32"] | None = None,
    fallback_precision: Literal["bf16", "fp16", "fp32"] | None = None,
    weights: Literal["per-channel", "per-tensor"] | None = None,
    block_size: int | None = None,
    plan: str | os.PathLike[str] | PrecisionPlan | BisectResult | Run | None = None,
    calibration: str
    | os.PathLike[str]
    | CalibrateResult
    | PrecisionPlan
    | Mapping[str, float]
    | None = None,
    method: str = "minmax",
    fp16_kernels: Literal["tensorrt", "exact"] = "tensorrt",
    pin: Sequence[str] = (),
    framework: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds] | None = None,
    local_samples: int | None = None,
    effect: Literal["exact", "fast", "none"] = "fast",
    try_remedies: bool = False,
    metric: str | Callable[..., float] | None = None,
    decode: str | None = None,
    fail_on: Sequence[str] = (),
    allow_unquantized: bool = False,
    batch_size: int | None = None,
    custom_op_library: Sequence[str | os.PathLike[str]] = (),
    cache: bool = True,
    memory_budget: int | str = 2147483648,
    backend: str = "simulation",
    save_engine: str | os.PathLike[str] | None = None,
    save_log: str | os.PathLike[str] | None = None,
    provider: str | None = None,
    provider_option: Sequence[str] = (),
    typing: Literal["strong", "implicit", "implicit-cache"] = "strong",
    compute_capability: Sequence[str] = (),
    optimization_level: int | None = None,
    workspace: int | str | None = None,
    tactic_sources: Sequence[str] | None = None,
    timing_cache: str | os.PathLike[str] | None = None,
    tf32: bool = False,
    sparsity: bool = False,
    plugin: Sequence[str] = (),
    refit: bool = False,
    version_compatible: bool = False,
    capture: Literal["outputs", "debug", "unfused"] | None = None,
    cluster: str | None = None,
    output: str | os.PathLike[str] | None = None,
    keep: str | None = None,
    keep_dtype: Literal["float32", "float16"] | None = None,
    save_plan: str | os.PathLike[str] | None = None,
    html: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> CompareResult:
    """Compare a quantized or FP16 model with its FP32 reference, tensor by tensor.

    The keywords: see `CompareSettings`.

    Raises:
        QdebugError: bad input (nothing was written), or a runtime that failed.
    """

@overload
def compare(
    model: CompareSettings, *, progress: Callable[[Progress], None] | None = None
) -> CompareResult: ...
@overload
def calibrate(
    model: str | os.PathLike[str] | onnx.ModelProto,
    *,
    calib_data: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds],
    method: Sequence[str] = ("minmax", "percentile", "entropy", "mse", "mean-max"),
    preprocess: str | os.PathLike[str] | Preprocessing | None = None,
    shape: Sequence[str] = (),
    skip_bad: bool = False,
    samples: int | None = None,
    holdout: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds] | None = None,
    holdout_share: float = 0.2,
    group: str | None = None,
    balance: bool = False,
    calibrator: Sequence[str | Callable[..., float]] = (),
    precision: Literal["int8", "fp8", "a16w8"] = "int8",
    from_cache: str
    | os.PathLike[str]
    | CalibrateResult
    | PrecisionPlan
    | Mapping[str, float]
    | None = None,
    weights: Literal["per-channel", "per-tensor"] = "per-channel",
    fallback_precision: Literal["bf16", "fp16", "fp32"] = "fp32",
    fp16_kernels: Literal["tensorrt", "exact"] = "tensorrt",
    weight_method: Literal["max", "mse"] = "max",
    metric: str | Callable[..., float] | None = None,
    decode: str | None = None,
    batch_size: int | None = None,
    custom_op_library: Sequence[str | os.PathLike[str]] = (),
    cache: bool = True,
    cluster: str | None = None,
    output: str | os.PathLike[str] | None = None,
    trt_cache: str | os.PathLike[str] | None = None,
    html: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> CalibrateResult:
    """Calibrate by several methods in one pass, and compare them on held-out samples.

    The keywords: see `CalibrateSettings`.

    Raises:
        QdebugError: bad input, or a runtime that failed.
    """

@overload
def calibrate(
    model: CalibrateSettings, *, progress: Callable[[Progress], None] | None = None
) -> CalibrateResult: ...
@overload
def ranges(
    source: str | os.PathLike[str] | onnx.ModelProto,
    *,
    calib_data: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds] | None = None,
    holdout: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds] | None = None,
    preprocess: str | os.PathLike[str] | Preprocessing | None = None,
    shape: Sequence[str] = (),
    skip_bad: bool = False,
    samples: int | None = None,
    tensors: Sequence[str] = (),
    top: int = 20,
    sort: str = "crest",
    batch_size: int | None = None,
    custom_op_library: Sequence[str | os.PathLike[str]] = (),
    cache: bool = True,
    force: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> RangesResult:
    """Dynamic range, histogram and calibration coverage of every tensor.

    The keywords: see `RangesSettings`.

    Raises:
        QdebugError: bad input, or a runtime that failed.
    """

@overload
def ranges(
    source: RangesSettings, *, progress: Callable[[Progress], None] | None = None
) -> RangesResult: ...
@overload
def bisect(
    model: str | os.PathLike[str] | onnx.ModelProto | None = None,
    *,
    inputs: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds],
    calib_data: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds] | None = None,
    preprocess: str | os.PathLike[str] | Preprocessing | None = None,
    shape: Sequence[str] = (),
    skip_bad: bool = False,
    samples: int | None = None,
    calib_samples: int | None = None,
    holdout: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds] | None = None,
    holdout_share: float = 0.3,
    precision: Literal["w4", "w8", "int8", "fp8", "a16w8", "bf16", "fp16", "fp32"] | None = None,
    fallback_precision: Literal["bf16", "fp16", "fp32"] | None = None,
    weights: Literal["per-channel", "per-tensor"] | None = None,
    block_size: int | None = None,
    plan: str | os.PathLike[str] | PrecisionPlan | BisectResult | Run | None = None,
    calibration: str
    | os.PathLike[str]
    | CalibrateResult
    | PrecisionPlan
    | Mapping[str, float]
    | None = None,
    method: str = "minmax",
    fp16_kernels: Literal["tensorrt", "exact"] = "tensorrt",
    framework: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds] | None = None,
    metric: str | Callable[..., float] | None = None,
    decode: str | None = None,
    worst_group: str | None = None,
    target: str | None = None,
    max_drop: float | None = None,
    max_rise: float | None = None,
    pin_to: Literal["w8", "int8", "fp8", "a16w8", "bf16", "fp16", "fp32", "auto", "ladder"]
    | None = None,
    pin: Sequence[str] = (),
    never_pin: Sequence[str] = (),
    profile: str | os.PathLike[str] | CompareResult | Run | None = None,
    profile_layers: str | os.PathLike[str] | None = None,
    max_evaluations: int | None = None,
    time_limit: float | None = None,
    select_point: str | None = None,
    batch_size: int | None = None,
    custom_op_library: Sequence[str | os.PathLike[str]] = (),
    cache: bool = True,
    memory_budget: int | str = 2147483648,
    backend: str = "simulation",
    save_engine: str | os.PathLike[str] | None = None,
    save_log: str | os.PathLike[str] | None = None,
    provider: str | None = None,
    provider_option: Sequence[str] = (),
    typing: Literal["strong", "implicit", "implicit-cache"] = "strong",
    compute_capability: Sequence[str] = (),
    optimization_level: int | None = None,
    workspace: int | str | None = None,
    tactic_sources: Sequence[str] | None = None,
    timing_cache: str | os.PathLike[str] | None = None,
    tf32: bool = False,
    sparsity: bool = False,
    plugin: Sequence[str] = (),
    refit: bool = False,
    version_compatible: bool = False,
    capture: Literal["outputs", "debug", "unfused"] | None = None,
    cluster: str | None = None,
    output: str | os.PathLike[str] | None = None,
    html: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> BisectResult:
    """Find the cheapest layers to keep in higher precision, so that the target holds.

    What was evaluated is kept on disk, so that a search that was interrupted goes on; with a metric
    in memory that uses more than plain data it is not.

    The keywords: see `BisectSettings`.

    Raises:
        QdebugError: bad input, or a runtime or a metric that failed; what was evaluated is kept.
    """

@overload
def bisect(
    model: BisectSettings, *, progress: Callable[[Progress], None] | None = None
) -> BisectResult: ...
@overload
def repair(
    model: str | os.PathLike[str] | onnx.ModelProto | None = None,
    *,
    calib_data: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds],
    inputs: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds] | None = None,
    reference: str | os.PathLike[str] | onnx.ModelProto | None = None,
    preprocess: str | os.PathLike[str] | Preprocessing | None = None,
    shape: Sequence[str] = (),
    skip_bad: bool = False,
    holdout_share: float = 0.4,
    samples: int | None = None,
    calib_samples: int | None = None,
    precision: Literal["w4", "w8", "int8", "fp8", "a16w8", "bf16", "fp16", "fp32"] | None = None,
    fallback_precision: Literal["bf16", "fp16", "fp32"] | None = None,
    weights: Literal["per-channel", "per-tensor"] | None = None,
    plan: str | os.PathLike[str] | PrecisionPlan | BisectResult | Run | None = None,
    calibration: str
    | os.PathLike[str]
    | CalibrateResult
    | PrecisionPlan
    | Mapping[str, float]
    | None = None,
    method: str = "minmax",
    fp16_kernels: Literal["tensorrt", "exact"] = "tensorrt",
    metric: str | Callable[..., float] | None = None,
    decode: str | None = None,
    worst_group: str | None = None,
    target: str | None = None,
    max_drop: float | None = None,
    max_rise: float | None = None,
    only: Sequence[str] = (),
    never: Sequence[str] = (),
    keep_undecided: bool = False,
    pin: bool = True,
    pin_to: Literal["w8", "int8", "fp8", "a16w8", "bf16", "fp16", "fp32", "auto", "ladder"]
    | None = None,
    never_pin: Sequence[str] = (),
    time_limit: float | None = None,
    batch_size: int | None = None,
    custom_op_library: Sequence[str | os.PathLike[str]] = (),
    cache: bool = True,
    memory_budget: int | str = 2147483648,
    cluster: str | None = None,
    output: str | os.PathLike[str] | None = None,
    save_plan: str | os.PathLike[str] | None = None,
    save_fp32: str | os.PathLike[str] | None = None,
    trt_cache: str | os.PathLike[str] | None = None,
    html: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> RepairResult:
    """Give INT8 its accuracy back without training, and pin only what that leaves.

    What is done so far is kept in the cache folder, from where a repair that was interrupted goes
    on; with a metric in memory that uses more than plain data it is not.

    The keywords: see `RepairSettings`.

    Raises:
        QdebugError: bad input, or a runtime or a metric that failed; what was done is kept.
    """

@overload
def repair(
    model: RepairSettings, *, progress: Callable[[Progress], None] | None = None
) -> RepairResult: ...
@overload
def inspect(
    file: str | os.PathLike[str] | onnx.ModelProto,
    *,
    profile: str | os.PathLike[str] | None = None,
    timing: str | os.PathLike[str] | None = None,
    metadata: str | os.PathLike[str] | None = None,
    model: str | os.PathLike[str] | onnx.ModelProto | None = None,
    shape: Sequence[str] = (),
    diff: str | os.PathLike[str] | onnx.ModelProto | None = None,
    diff_profile: str | os.PathLike[str] | None = None,
    expect: str | os.PathLike[str] | PrecisionPlan | BisectResult | Run | None = None,
    fail_on: Sequence[str] = (),
    csv: str | os.PathLike[str] | None = None,
    html: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> InspectResult:
    """What an engine really is: precision, fusion, formats and tactics of its layers.

    The keywords: see `InspectSettings`.

    Raises:
        QdebugError: a file that cannot be read or is none of the known kinds, a plan that does not
            fit, an engine of another model, an unknown condition.
    """

@overload
def inspect(file: InspectSettings) -> InspectResult: ...
@overload
def sweep(
    model: str | os.PathLike[str] | onnx.ModelProto | None = None,
    *,
    inputs: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds],
    calib_data: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds] | None = None,
    precision: Sequence[
        Literal[
            "w4",
            "w8",
            "int8",
            "fp8",
            "a16w8",
            "bf16",
            "fp16",
            "fp32",
            "w4+bf16",
            "w8+bf16",
            "int8+bf16",
            "fp8+bf16",
            "a16w8+bf16",
            "w4+fp16",
            "w8+fp16",
            "int8+fp16",
            "fp8+fp16",
            "a16w8+fp16",
        ]
    ] = (),
    plan: Sequence[str | os.PathLike[str] | PrecisionPlan | BisectResult | Run] = (),
    weights: Sequence[Literal["per-channel", "per-tensor"]] = (),
    compute_capability: Sequence[str] = (),
    optimization_level: Sequence[Literal["default", "0", "1", "2", "3", "4", "5"]] = ("default",),
    tactic_sources: Sequence[str] = ("default",),
    typing: Sequence[Literal["strong", "implicit", "implicit-cache"]] = ("strong",),
    tf32: Sequence[Literal["off", "on"]] = ("off",),
    sparsity: Sequence[Literal["off", "on"]] = ("off",),
    refit: Sequence[Literal["off", "on"]] = ("off",),
    version_compatible: Sequence[Literal["off", "on"]] = ("off",),
    reference: str | os.PathLike[str] | onnx.ModelProto | None = None,
    preprocess: str | os.PathLike[str] | Preprocessing | None = None,
    shape: Sequence[str] = (),
    skip_bad: bool = False,
    samples: int | None = None,
    calib_samples: int | None = None,
    calibration: str
    | os.PathLike[str]
    | CalibrateResult
    | PrecisionPlan
    | Mapping[str, float]
    | None = None,
    method: str = "minmax",
    fp16_kernels: Literal["tensorrt", "exact"] = "tensorrt",
    fail_on: Sequence[str] = (),
    allow_unquantized: bool = False,
    metric: str | Callable[..., float] | None = None,
    decode: str | None = None,
    batch_size: int | None = None,
    custom_op_library: Sequence[str | os.PathLike[str]] = (),
    cache: bool = True,
    backend: str = "tensorrt-rtx",
    provider: str | None = None,
    provider_option: Sequence[str] = (),
    workspace: int | str | None = None,
    timing_cache: str | os.PathLike[str] | None = None,
    plugin: Sequence[str] = (),
    cluster: str | None = None,
    save_engines: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    html: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> SweepResult:
    """Builder settings against accuracy, latency and build time: every combination is built.

    The keywords: see `SweepSettings`.

    Raises:
        QdebugError: bad input (nothing was built), or a reference that does not run.
    """

@overload
def sweep(
    model: SweepSettings, *, progress: Callable[[Progress], None] | None = None
) -> SweepResult: ...
@overload
def diff(
    run: str | os.PathLike[str],
    *,
    other: str | os.PathLike[str],
    fail_on: Sequence[str] = (),
    force: bool = False,
) -> DiffResult:
    """Where two runs of one model, on two machines or backends, diverge.

    The keywords: see `DiffSettings`.

    Raises:
        QdebugError: a file that cannot be read, runs of two models or on other samples, an unknown
            condition.
    """

@overload
def diff(run: DiffSettings) -> DiffResult: ...
@overload
def report(
    runs: Sequence[
        str
        | os.PathLike[str]
        | Run
        | CompareResult
        | CalibrateResult
        | RangesResult
        | BisectResult
        | RepairResult
        | SweepResult
        | InspectResult
    ],
    *,
    model: str | os.PathLike[str] | onnx.ModelProto | None = None,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> ReportResult:
    """Write a page that shows a result: one HTML file that needs nothing else.

    The keywords: see `ReportSettings`.

    Raises:
        QdebugError: a file that cannot be read or holds no result, an existing output.
    """

@overload
def report(runs: ReportSettings) -> ReportResult: ...
@overload
def view(
    files: Sequence[
        str
        | os.PathLike[str]
        | Run
        | CompareResult
        | CalibrateResult
        | RangesResult
        | BisectResult
        | RepairResult
        | SweepResult
        | InspectResult
    ],
    *,
    model: str | os.PathLike[str] | onnx.ModelProto | None = None,
    port: int = 0,
    browser: bool = True,
) -> View:
    """Show a result in a browser, with every activation that a run file keeps.

    The keywords: see `ViewSettings`.

    Raises:
        QdebugError: a file that cannot be read or holds nothing to show, a port that is in use.
    """

@overload
def view(files: ViewSettings) -> View: ...
@overload
def export(
    plan: str | os.PathLike[str] | PrecisionPlan | BisectResult | Run,
    *,
    model: str | os.PathLike[str] | onnx.ModelProto | None = None,
    to: str = "onnx",
    missing: Literal["refuse", "float"] = "refuse",
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> ExportResult:
    """Write a precision plan, a calibration or the figures of a run for another tool.

    The keywords: see `ExportSettings`.

    Raises:
        QdebugError: an unknown target, a plan that does not fit, an existing output.
    """

@overload
def export(plan: ExportSettings) -> ExportResult: ...
def doctor() -> DoctorResult:
    """What this machine can run, and what to install for the rest."""

def load_run(path: str | os.PathLike[str]) -> Run:
    """A run file of `compare`: its result, plan, manifest and activations.

    Raises:
        StoreError: no such file, or not a run file that is whole.
    """

def open_samples(
    data: Any, model: Any, *, samples: int | None = None, batch_size: int | None = None
) -> Samples:
    """Samples for a model, to be given to several functions: they are read and checked once.

    Args:
        data: as `inputs` of `compare`.
        model: a path or an `onnx.ModelProto`, whose inputs they are for; how pictures become these
            is read from it, or beside it.
        samples: use at most so many.
        batch_size: samples per execution; None takes the model's, or 1.

    Raises:
        QdebugError: the data or the model cannot be read, or do not fit.
    """
