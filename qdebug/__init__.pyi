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

from qdebug.config.bisect import BisectSettings as BisectSettings
from qdebug.config.calibrate import CalibrateSettings as CalibrateSettings
from qdebug.config.compare import CompareSettings as CompareSettings
from qdebug.config.export import ExportSettings as ExportSettings
from qdebug.config.inspect import InspectSettings as InspectSettings
from qdebug.config.ranges import RangesSettings as RangesSettings
from qdebug.config.sweep import SweepSettings as SweepSettings
from qdebug.errors import BackendError as BackendError
from qdebug.errors import MetricError as MetricError
from qdebug.errors import ModelError as ModelError
from qdebug.errors import PlanError as PlanError
from qdebug.errors import QdebugError as QdebugError
from qdebug.errors import SampleError as SampleError
from qdebug.errors import StoreError as StoreError
from qdebug.errors import UsageError as UsageError
from qdebug.measure.calibration import CalibrateResult as CalibrateResult
from qdebug.measure.inspection import InspectResult as InspectResult
from qdebug.measure.ranges import RangesResult as RangesResult
from qdebug.measure.result import Cause as Cause
from qdebug.measure.result import CompareResult as CompareResult
from qdebug.measure.result import LayerResult as LayerResult
from qdebug.measure.result import TensorResult as TensorResult
from qdebug.measure.sweep import SweepResult as SweepResult
from qdebug.model.samples import Samples as Samples
from qdebug.plan.export import ExportResult as ExportResult
from qdebug.plan.plan import PrecisionPlan as PrecisionPlan
from qdebug.plan.plan import TensorRange as TensorRange
from qdebug.run.doctor import DoctorResult as DoctorResult
from qdebug.search.outcome import BisectResult as BisectResult
from qdebug.store.run import Run as Run
from qdebug.types import Precision as Precision
from qdebug.types import Progress as Progress

__version__: str
__all__ = [
    "BackendError",
    "BisectResult",
    "BisectSettings",
    "CalibrateResult",
    "CalibrateSettings",
    "Cause",
    "CompareResult",
    "CompareSettings",
    "DoctorResult",
    "ExportResult",
    "ExportSettings",
    "InspectResult",
    "InspectSettings",
    "LayerResult",
    "MetricError",
    "ModelError",
    "PlanError",
    "Precision",
    "PrecisionPlan",
    "Progress",
    "QdebugError",
    "RangesResult",
    "RangesSettings",
    "Run",
    "SampleError",
    "Samples",
    "StoreError",
    "SweepResult",
    "SweepSettings",
    "TensorRange",
    "TensorResult",
    "UsageError",
    "bisect",
    "calibrate",
    "compare",
    "doctor",
    "export",
    "inspect",
    "load_run",
    "open_samples",
    "ranges",
    "sweep",
]

Feeds = Mapping[str, ArrayLike]
Path = str | os.PathLike[str]

@overload
def compare(
    model: str | os.PathLike[str] | onnx.ModelProto | None = None,
    *,
    inputs: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds],
    precision: Literal["int8", "fp16", "fp32"] | None = None,
    fallback_precision: Literal["fp16", "fp32"] | None = None,
    weights: Literal["per-channel", "per-tensor"] | None = None,
    plan: str | os.PathLike[str] | PrecisionPlan | None = None,
    calibration: str | os.PathLike[str] | CalibrateResult | Mapping[str, float] | None = None,
    calib_data: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds] | None = None,
    method: str = "minmax",
    samples: int | None = None,
    calib_samples: int | None = None,
    batch_size: int | None = None,
    fp16_kernels: Literal["tensorrt", "exact"] = "tensorrt",
    cache: bool = True,
    reference: str | os.PathLike[str] | onnx.ModelProto | None = None,
    local_samples: int = 16,
    memory_budget: int | str = 2147483648,
    metric: str | Callable[..., float] | None = None,
    fail_on: Sequence[str] = (),
    backend: str = "simulation",
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
    save_engine: str | os.PathLike[str] | None = None,
    save_log: str | os.PathLike[str] | None = None,
    provider: str | None = None,
    capture: Literal["outputs", "debug", "unfused"] | None = None,
    output: str | os.PathLike[str] | None = None,
    keep: str = "worst:2",
    keep_dtype: Literal["float32", "float16"] = "float32",
    save_plan: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> CompareResult:
    """Compare a quantized or FP16 model with its FP32 reference, tensor by tensor.

    Args:
        model: The ONNX model; without, the one that the plan names.
        inputs: Samples to compare on: .npz, .npy, .h5, a directory of them, test_data_set_*,
            Polygraphy's inputs JSON, or script.py:function.
        precision: Precision of the candidate.
        fallback_precision: Precision of layers without an INT8 form.
        weights: Scales of weights.
        plan: A precision plan; the layers and ranges that it names are kept.
        calibration: Ranges to use: scales.yaml, a TensorRT cache or a plan.
        calib_data: Samples to calibrate on.
        method: Calibrator: minmax, percentile[:P], entropy, mse, mean-max.
        samples: Use the first N samples.
        calib_samples: Calibrate on the first N samples.
        batch_size: Samples per execution where the batch axis is dynamic.
        fp16_kernels: How FP16 layers are simulated: as TensorRT's kernels compute them, which
            sum in FP16, or with exact sums.
        cache: Reuse what an earlier calibration pass over the same model and data gathered.
        reference: The FP32 model of one that carries Q/DQ, or a run file whose reference
            activations are reused.
        local_samples: Measure local errors on N of the samples, rounded up to whole batches,
            of which at least two.
        memory_budget: Memory for captured tensors, such as 512M.
        metric: End-to-end accuracy: top1, agreement, file.py:function,
            package.module:function.
        fail_on: A condition that must hold, such as "output.cosine>=0.99",
            "layer.sqnr_db>=20" or "metric>=0.95"; repeatable. Metrics: max_abs_err,
            mean_abs_err, rmse, sqnr_db, cosine, ref_amax, cand_amax, clipped_fraction,
            nan_count, inf_count, worst_sample_sqnr_db, worst_channel_sqnr_db; of layers also
            local_sqnr_db, input_clipped_fraction.
        backend: Where the candidate runs: simulation, onnxruntime, openvino, tensorrt-rtx,
            tensorrt. `qdebug doctor` lists what is installed.
        typing: How the builder is told the precisions: strong, by Q/DQ and Casts; TensorRT 10
            only: implicit, by layer precisions and dynamic ranges, or implicit-cache, by
            layer precisions and a calibrator's cache.
        compute_capability: A GPU to build for, such as 8.9; repeatable, one engine for all.
            tensorrt-rtx only.
        optimization_level: How long the builder looks for fast kernels, 0 to 5.
        workspace: Scratch memory, such as 512M.
        tactic_sources: A trt.TacticSource to allow; repeatable.
        timing_cache: Kernel times to share between builds. tensorrt only.
        tf32: Let FP32 layers compute in TF32.
        sparsity: Use kernels for weights with 2:4 sparsity.
        plugin: A shared object with plugins; repeatable.
        refit: Let weights of the engine be replaced later. Needs a GPU to build on.
        version_compatible: Let the engine run under later versions of the library.
        save_engine: Write the engine, as trtexec --loadEngine takes it.
        save_log: Write the verbose log of its build, for `qdebug inspect`.
        provider: Execution provider of ONNX Runtime, such as CUDA.
        capture: How an engine's tensors are observed: as further outputs, as debug tensors,
            or in an engine without fusion.
        output: Write a run file (HDF5): results, plan, ranges and activations.
        keep: Activations to keep in it: all, worst:N samples, or none.
        keep_dtype: How activations are kept.
        save_plan: Write the plan that was run, ranges included.
        force: Replace existing files.
        progress: Called with a `Progress` again and again.

    Raises:
        QdebugError: bad input (nothing was written), a runtime that failed, or a metric that
            raised (the run file holds everything else).
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
    calibrator: Sequence[str | Callable[..., float]] = (),
    mix: bool = False,
    from_cache: str | os.PathLike[str] | None = None,
    weights: Literal["per-channel", "per-tensor"] = "per-channel",
    fallback_precision: Literal["fp16", "fp32"] = "fp32",
    fp16_kernels: Literal["tensorrt", "exact"] = "tensorrt",
    weight_method: Literal["max", "mse"] = "max",
    samples: int | None = None,
    batch_size: int | None = None,
    cache: bool = True,
    holdout: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds] | None = None,
    holdout_share: float = 0.2,
    metric: str | Callable[..., float] | None = None,
    output: str | os.PathLike[str] | None = None,
    trt_cache: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> CalibrateResult:
    """Calibrate by several methods in one pass, and compare them on samples none has seen.

    Args:
        model: The FP32 ONNX model.
        calib_data: Samples to calibrate on: .npz, .npy, .h5, a directory of them,
            test_data_set_*, Polygraphy's inputs JSON, or script.py:function.
        method: Calibrators to try, with commas: minmax, percentile[:P], entropy, mse, mean-
            max.
        calibrator: Your own: file.py:function gets a histogram and returns amax; repeatable.
        mix: Try the best method of each tensor too.
        from_cache: Judge an existing calibration too: a TensorRT cache, scales.yaml or a
            plan.
        weights: Scales of weights.
        fallback_precision: Precision of layers without an INT8 form.
        fp16_kernels: How FP16 layers are simulated: as TensorRT's kernels compute them, which
            sum in FP16, or with exact sums.
        weight_method: Ranges of weights: the largest magnitude, or least squared error.
        samples: Use the first N samples.
        batch_size: Samples per execution where the batch axis is dynamic.
        cache: Reuse what an earlier calibration pass over the same model and data gathered.
        holdout: Samples to judge on.
        holdout_share: The share of the samples to hold out.
        metric: End-to-end accuracy: top1, agreement, file.py:function,
            package.module:function.
        output: Write the best ranges, for --calibration.
        trt_cache: Write them as a calibration cache for TensorRT 10, of EntropyCalibration2:
            what trtexec and, by default, Polygraphy read. For a calibrator of another class
            change its first line.
        force: Replace existing files.
        progress: Called with a `Progress` again and again.

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
    samples: int | None = None,
    batch_size: int | None = None,
    cache: bool = True,
    tensors: Sequence[str] = (),
    top: int = 20,
    sort: Literal["crest", "amax", "name", "order", "growth"] = "crest",
    plot: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> RangesResult:
    """Dynamic range, histogram and calibration coverage of every tensor.

    Args:
        source: A run file, or an FP32 ONNX model.
        calib_data: Samples to run the model on: .npz, .npy, .h5, a directory of them,
            test_data_set_*, Polygraphy's inputs JSON, or script.py:function.
        holdout: Other samples: how far do they leave the ranges?
        samples: Use the first N samples.
        batch_size: Samples per execution where the batch axis is dynamic.
        cache: Reuse what an earlier calibration pass over the same model and data gathered.
        tensors: Only this tensor, with its histogram and calibrators; repeatable.
        top: Show the first N tensors.
        sort: The order of the tensors.
        plot: Draw all ranges over the depth of the network, or with one --tensor its
            histogram; into a folder both, for each tensor shown.
        force: Replace existing files.
        progress: Called with a `Progress` again and again.

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
    precision: Literal["int8", "fp16", "fp32"] | None = None,
    fallback_precision: Literal["fp16", "fp32"] | None = None,
    weights: Literal["per-channel", "per-tensor"] | None = None,
    plan: str | os.PathLike[str] | PrecisionPlan | None = None,
    calibration: str | os.PathLike[str] | CalibrateResult | Mapping[str, float] | None = None,
    calib_data: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds] | None = None,
    method: str = "minmax",
    samples: int | None = None,
    calib_samples: int | None = None,
    batch_size: int | None = None,
    fp16_kernels: Literal["tensorrt", "exact"] = "tensorrt",
    cache: bool = True,
    holdout: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds] | None = None,
    holdout_share: float = 0.3,
    metric: str | Callable[..., float] | None = None,
    target: str | None = None,
    max_drop: float | None = None,
    max_rise: float | None = None,
    strategy: str = "auto",
    pin_to: Literal["fp16", "fp32", "auto"] | None = None,
    pin: Sequence[str] = (),
    never_pin: Sequence[str] = (),
    profile: str | os.PathLike[str] | None = None,
    profile_layers: str | os.PathLike[str] | None = None,
    max_evaluations: int | None = None,
    time_limit: float | None = None,
    journal: str | os.PathLike[str] | None = None,
    memory_budget: int | str = 536870912,
    int8_kernels: bool = True,
    select_point: str | None = None,
    backend: str = "simulation",
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
    save_engine: str | os.PathLike[str] | None = None,
    save_log: str | os.PathLike[str] | None = None,
    provider: str | None = None,
    capture: Literal["outputs", "debug", "unfused"] | None = None,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> BisectResult:
    """Find the cheapest layers to keep in higher precision, so that the target holds.

    Evaluations are kept in a journal, by which a search that was interrupted goes on; with a metric
    in memory that uses more than plain data there is none.

    Args:
        model: The ONNX model; without, the one that the plan names.
        inputs: Samples to compare on: .npz, .npy, .h5, a directory of them, test_data_set_*,
            Polygraphy's inputs JSON, or script.py:function.
        precision: Precision of the candidate.
        fallback_precision: Precision of layers without an INT8 form.
        weights: Scales of weights.
        plan: A precision plan; the layers and ranges that it names are kept.
        calibration: Ranges to use: scales.yaml, a TensorRT cache or a plan.
        calib_data: Samples to calibrate on.
        method: Calibrator: minmax, percentile[:P], entropy, mse, mean-max.
        samples: Use the first N samples.
        calib_samples: Calibrate on the first N samples.
        batch_size: Samples per execution where the batch axis is dynamic.
        fp16_kernels: How FP16 layers are simulated: as TensorRT's kernels compute them, which
            sum in FP16, or with exact sums.
        cache: Reuse what an earlier calibration pass over the same model and data gathered.
        holdout: Samples to verify the answer on.
        holdout_share: The share of the samples to hold out.
        metric: End-to-end accuracy: top1, agreement, file.py:function,
            package.module:function.
        target: What must hold, such as "output.cosine>=0.999" or "metric>=0.97".
        max_drop: Instead of a target: how far the metric may fall below FP32's.
        max_rise: The same for a metric where less is better: how far it may rise.
        strategy: How to search: auto (predicts the cheapest set that passes, verifies it, and
            shrinks it); rank (the layers with the largest local errors, by doubling and a
            binary search); ddmin (delta debugging, which knows neither costs nor ranks);
            prefix (the first layers, by a binary search, as Polygraphy's debug precision);
            suffix (the last layers, in the same way); exhaustive (every set, the cheapest
            first; up to 16 layers).
        pin_to: Precision of pinned layers; auto takes fp16 where it suffices.
        pin: Always pin this layer: a name, a pattern with *, or op:TYPE; repeatable.
        never_pin: Never pin it; repeatable.
        profile: Count costs in milliseconds: the JSON of trtexec --exportProfile, or a run
            file of compare on a GPU.
        profile_layers: What the profiled layers are: the JSON of trtexec --exportLayerInfo,
            or the build log. Needed where their names do not tell.
        max_evaluations: Stop a search after N candidates.
        time_limit: Stop searching after so many seconds.
        journal: Remember evaluations here; a search that was ended goes on from there.
        memory_budget: Memory for activations that candidates start from, such as 1G.
        int8_kernels: Search on ONNX Runtime's INT8 kernels, where they agree with the
            simulation.
        select_point: Take this point of the list of error against cost: its number, or knee.
        backend: Where the candidate runs: simulation, onnxruntime, openvino, tensorrt-rtx,
            tensorrt. `qdebug doctor` lists what is installed.
        typing: How the builder is told the precisions: strong, by Q/DQ and Casts; TensorRT 10
            only: implicit, by layer precisions and dynamic ranges, or implicit-cache, by
            layer precisions and a calibrator's cache.
        compute_capability: A GPU to build for, such as 8.9; repeatable, one engine for all.
            tensorrt-rtx only.
        optimization_level: How long the builder looks for fast kernels, 0 to 5.
        workspace: Scratch memory, such as 512M.
        tactic_sources: A trt.TacticSource to allow; repeatable.
        timing_cache: Kernel times to share between builds. tensorrt only.
        tf32: Let FP32 layers compute in TF32.
        sparsity: Use kernels for weights with 2:4 sparsity.
        plugin: A shared object with plugins; repeatable.
        refit: Let weights of the engine be replaced later. Needs a GPU to build on.
        version_compatible: Let the engine run under later versions of the library.
        save_engine: Write the engine, as trtexec --loadEngine takes it.
        save_log: Write the verbose log of its build, for `qdebug inspect`.
        provider: Execution provider of ONNX Runtime, such as CUDA.
        capture: How an engine's tensors are observed: as further outputs, as debug tensors,
            or in an engine without fusion.
        output: Write the plan that was found.
        force: Replace existing files.
        progress: Called with a `Progress` again and again.

    Raises:
        QdebugError: bad input, or a runtime or a metric that failed; what was evaluated is kept.
    """

@overload
def bisect(
    model: BisectSettings, *, progress: Callable[[Progress], None] | None = None
) -> BisectResult: ...
@overload
def inspect(
    file: str | os.PathLike[str] | onnx.ModelProto,
    *,
    profile: str | os.PathLike[str] | None = None,
    model: str | os.PathLike[str] | onnx.ModelProto | None = None,
    diff: str | os.PathLike[str] | None = None,
    expect: str | os.PathLike[str] | PrecisionPlan | None = None,
    fail_on: Sequence[str] = (),
) -> InspectResult:
    """What an engine really is: precision, fusion, formats and tactics of its layers.

    Args:
        file: An ONNX model, an engine (on its GPU), layer information or a profile of trtexec
            (JSON), or a verbose build log of qdebug, trtexec, Polygraphy or Python.
        profile: Times of the same engine's layers (trtexec --exportProfile).
        model: The ONNX model that was built.
        diff: Another engine of the same model: what differs?
        expect: The plan that was asked for; exit 1 if a layer was built in another precision.
        fail_on: Exit 1 unless it holds, as "int8_share>=0.8" or "reformat_count<=4";
            repeatable. An unknown name lists all.

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
    reference: str | os.PathLike[str] | onnx.ModelProto | None = None,
    calibration: str | os.PathLike[str] | CalibrateResult | Mapping[str, float] | None = None,
    calib_data: str | os.PathLike[str] | Mapping[str, ArrayLike] | Iterable[Feeds] | None = None,
    method: str = "minmax",
    samples: int | None = None,
    calib_samples: int | None = None,
    batch_size: int | None = None,
    cache: bool = True,
    fp16_kernels: Literal["tensorrt", "exact"] = "tensorrt",
    precision: Sequence[Literal["int8", "fp16", "fp32", "int8+fp16"]] = (),
    plan: Sequence[str | os.PathLike[str] | PrecisionPlan] = (),
    weights: Sequence[Literal["per-channel", "per-tensor"]] = (),
    compute_capability: Sequence[str] = (),
    optimization_level: Sequence[Literal["default", "0", "1", "2", "3", "4", "5"]] = ("default",),
    tactic_sources: Sequence[str] = ("default",),
    typing: Sequence[Literal["strong", "implicit", "implicit-cache"]] = ("strong",),
    tf32: Sequence[Literal["off", "on"]] = ("off",),
    sparsity: Sequence[Literal["off", "on"]] = ("off",),
    refit: Sequence[Literal["off", "on"]] = ("off",),
    version_compatible: Sequence[Literal["off", "on"]] = ("off",),
    fail_on: Sequence[str] = (),
    metric: str | Callable[..., float] | None = None,
    backend: str = "tensorrt-rtx",
    workspace: int | str | None = None,
    timing_cache: str | os.PathLike[str] | None = None,
    plugin: Sequence[str] = (),
    provider: str | None = None,
    save_engines: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> SweepResult:
    """Builder settings against accuracy, latency and build time: every combination is built.

    Args:
        model: The ONNX model; without, the one that the plan names.
        inputs: Samples to compare on: .npz, .npy, .h5, a directory of them, test_data_set_*,
            Polygraphy's inputs JSON, or script.py:function.
        reference: The FP32 model of one that carries Q/DQ.
        calibration: Ranges to use: scales.yaml, a TensorRT cache or a plan.
        calib_data: Samples to calibrate on.
        method: Calibrator: minmax, percentile[:P], entropy, mse, mean-max.
        samples: Use the first N samples.
        calib_samples: Calibrate on the first N samples.
        batch_size: Samples per execution where the batch axis is dynamic.
        cache: Reuse what was calibrated, built and measured earlier.
        fp16_kernels: How FP16 layers are simulated: as TensorRT's kernels compute them, which
            sum in FP16, or with exact sums.
        precision: int8+fp16 is FP16 where there is no INT8 form.
        plan: A precision plan to try beside the precisions; repeatable.
        weights: Scales of weights.
        compute_capability: GPUs to build for, such as 8.9; one engine for several with '+'.
            tensorrt-rtx only.
        optimization_level: How long the builder looks for fast kernels.
        tactic_sources: default, none, or names of trt.TacticSource joined by '+'.
        typing: How the builder is told the precisions; implicit ones in TensorRT 10 only.
        tf32: Let FP32 layers compute in TF32.
        sparsity: Use kernels for weights with 2:4 sparsity.
        refit: Let weights be replaced later.
        version_compatible: Let the engine run under later versions of the library.
        fail_on: Exit 1 unless a combination meets it, such as "output.cosine>=0.99",
            "metric>=0.95" or "int8_share>=0.8"; repeatable.
        metric: End-to-end accuracy: top1, agreement, file.py:function,
            package.module:function.
        backend: The library that builds: onnxruntime, openvino, tensorrt-rtx, tensorrt.
        workspace: Scratch memory, such as 512M.
        timing_cache: Kernel times to share between builds. tensorrt only.
        plugin: A shared object with plugins; repeatable.
        provider: Execution provider of ONNX Runtime, such as CUDA.
        save_engines: Write every engine and the log of its build here, by its row in the
            table: 1.engine, 1.log, …
        output: Write all figures as CSV.
        force: Replace existing files.
        progress: Called with a `Progress` again and again.

    Raises:
        QdebugError: bad input (nothing was built), or a reference that does not run.
    """

@overload
def sweep(
    model: SweepSettings, *, progress: Callable[[Progress], None] | None = None
) -> SweepResult: ...
@overload
def export(
    plan: str | os.PathLike[str] | PrecisionPlan,
    *,
    model: str | os.PathLike[str] | onnx.ModelProto | None = None,
    to: str = "onnx",
    missing: Literal["refuse", "float"] = "refuse",
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> ExportResult:
    """Write a precision plan or a calibration for another tool.

    Args:
        plan: A precision plan, or a calibration: scales.yaml or a TensorRT cache, which stand
            for INT8 in every layer that has that form.
        model: The FP32 ONNX model.
        to: What to write: onnx (the explicit Q/DQ + Cast model); trtexec (shell script for
            trtexec and tensorrt_rtx); polygraphy (network postprocessing script for
            Polygraphy); python (script that builds the engine with TensorRT's Python API);
            modelopt (script and exclude lists for NVIDIA's Model Optimizer); ort (arguments
            of ONNX Runtime's quantizer); trt-cache (TensorRT calibration cache
            (EntropyCalibration2)).
        missing: INT8 layers whose inputs have no range: refuse, or leave them in float.
        output: The file to write.
        force: Replace existing files.

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
        model: a path or an `onnx.ModelProto`, whose inputs they are for.
        samples: use at most so many.
        batch_size: samples per execution; None takes the model's, or 1.

    Raises:
        QdebugError: the data or the model cannot be read, or do not fit.
    """
