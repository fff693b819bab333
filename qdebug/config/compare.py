"""Settings of `qdebug compare`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from qdebug.backends.budget import DEFAULT_BUDGET
from qdebug.config.candidate import (
    ALLOW_UNQUANTIZED,
    FORCE,
    FRAMEWORK,
    GROUP,
    HTML,
    MEMORY_BUDGET,
    CandidateSettings,
)
from qdebug.config.cluster import ClusterSettings
from qdebug.config.option import (
    GATE,
    LOOK,
    PRECISIONS,
    QUANTIZED,
    WRITE,
    DataLike,
    ModelLike,
    Option,
    Positive,
)
from qdebug.config.specs import QuantizationSpec
from qdebug.metrics.tensor import gate_usage

StorageName = Literal["float32", "float16"]
EffectName = Literal["exact", "fast", "none"]


@dataclass(frozen=True)
class CompareSettings(CandidateSettings, ClusterSettings):
    """The settings of `qdebug compare`, besides those that it shares with other commands."""

    reference: Annotated[
        ModelLike | None,
        Option(
            "Of a quantized MODEL: the FP32 model that it was made from.",
            QUANTIZED,
            metavar="FILE",
            reads=True,
        ),
    ] = None
    pin: Annotated[
        tuple[str, ...],
        Option(
            "Keep this layer in the fallback precision: a name, a pattern with *, or op:TYPE; "
            "repeatable.",
            PRECISIONS,
            metavar="NAME",
        ),
    ] = ()
    group: Annotated[str | None, GROUP] = None
    framework: Annotated[DataLike | None, FRAMEWORK] = None
    local_samples: Annotated[
        Positive | None,
        Option(
            "Measure the error that each layer makes by itself on N samples, rounded up to whole "
            "batches.",
            LOOK,
            metavar="N",
            unset="16, of a large model fewer",
        ),
    ] = None
    effect: Annotated[
        EffectName,
        Option(
            "How to measure what each layer costs at the outputs: exact takes every layer and all "
            "samples, fast the worst layers within a bound on the time, none leaves it out.",
            LOOK,
        ),
    ] = "fast"
    try_remedies: Annotated[
        bool,
        Option(
            "Try every remedy of 'qdebug repair' on each of the worst layers, and say what it "
            "gains. They are fitted on the calibration samples, or on half of those compared.",
            LOOK,
        ),
    ] = False
    memory_budget: Annotated[int, MEMORY_BUDGET] = DEFAULT_BUDGET
    fail_on: Annotated[
        tuple[str, ...],
        Option(
            'Exit with 1 unless this holds, such as "output.cosine>=0.99", "layer.sqnr_db>=20" or '
            f'"metric>=0.95"; repeatable. Figures: {gate_usage()}.',
            GATE,
            metavar="CONDITION",
        ),
    ] = ()
    allow_unquantized: Annotated[bool, ALLOW_UNQUANTIZED] = False
    output: Annotated[
        str | None,
        Option(
            "Write everything to a run file (HDF5), which report, view and ranges read.",
            WRITE,
            metavar="run.h5",
            suffixes=(".h5", ".hdf5"),
            short="-o",
            writes="new",
        ),
    ] = None
    keep: Annotated[
        str | None,
        Option(
            "Samples whose activations the run file holds: all, worst:N (the N worst), or none.",
            WRITE,
            metavar="WHICH",
            unset="worst:2, or what stays below 200 MB",
        ),
    ] = None
    keep_dtype: Annotated[
        StorageName | None,
        Option(
            "Type of the activations in the run file.",
            WRITE,
            unset="float32, or what stays below 200 MB",
        ),
    ] = None
    save_plan: Annotated[
        str | None,
        Option(
            "Write what was run as a plan (YAML): the precision of each layer, and all ranges.",
            WRITE,
            metavar="FILE.yaml",
            suffixes=(".yaml", ".yml"),
            writes="new",
        ),
    ] = None
    html: Annotated[str | None, HTML] = None
    force: Annotated[bool, FORCE] = False

    @property
    def told_apart_by(self) -> str | None:
        """See DataSettings."""
        return self.group

    @property
    def quantization(self) -> QuantizationSpec:
        """See CandidateSettings; with the layers to pin."""
        return replace(super().quantization, pin=self.pin)
