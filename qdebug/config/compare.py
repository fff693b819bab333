"""Settings of `qdebug compare`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from cyclopts import Parameter
from pydantic.dataclasses import dataclass

from qdebug.config.flag import (
    CHECKED,
    GATE,
    LOOK,
    PRECISIONS,
    QUANTIZED,
    WRITE,
    File,
    Positive,
)
from qdebug.config.objects import Data, Model
from qdebug.config.shared import (
    FRAMEWORK,
    GROUP_BY,
    CandidateSettings,
    ClusterSettings,
    GateSettings,
    MemorySettings,
    PageSettings,
)
from qdebug.config.specs import QuantizationSpec
from qdebug.metrics.tensor import gate_usage

EffectName = Literal["exact", "fast", "none"]


@dataclass(frozen=True, config=CHECKED)
class CompareSettings(
    CandidateSettings, MemorySettings, GateSettings, ClusterSettings, PageSettings
):
    """The settings of `qdebug compare`, besides those that it shares with other commands."""

    reference: Annotated[
        Model | None,
        Parameter(
            help="Of a quantized MODEL: the FP32 model that it was made from.",
            group=QUANTIZED,
            metavar="FILE",
        ),
    ] = None
    pin: Annotated[
        tuple[str, ...],
        Parameter(
            help="Keep this layer in the fallback precision: a name, a pattern with *, or op:TYPE; "
            "repeatable.",
            group=PRECISIONS,
            metavar="NAME",
        ),
    ] = ()
    group: Annotated[str | None, GROUP_BY] = None
    framework: Annotated[Data | None, FRAMEWORK] = None
    local_samples: Annotated[
        Positive | None,
        Parameter(
            help="Measure the error that each layer makes by itself on N samples, rounded up to "
            "whole batches.",
            group=LOOK,
            metavar="N",
            show_default="16, of a large model fewer",
        ),
    ] = None
    effect: Annotated[
        EffectName,
        Parameter(
            help="How to measure what each layer costs at the outputs: exact takes every layer and "
            "all samples, fast the worst layers within a bound on the time, none leaves it out.",
            group=LOOK,
        ),
    ] = "fast"
    try_remedies: Annotated[
        bool,
        Parameter(
            help="Try every remedy of 'qdebug repair' on each of the worst layers, and say what it "
            "gains. They are fitted on the calibration samples, or on half of those compared.",
            group=LOOK,
        ),
    ] = False
    fail_on: Annotated[
        tuple[str, ...],
        Parameter(
            help='Exit with 1 unless this holds, such as "output.cosine>=0.99", '
            f'"layer.sqnr_db>=20" or "metric>=0.95"; repeatable. Figures: {gate_usage()}.',
            group=GATE,
            metavar="CONDITION",
        ),
    ] = ()
    output: Annotated[
        str | None,
        File("new", (".h5", ".hdf5")),
        Parameter(
            name=("--output", "-o"),
            help="Write everything to a run file (HDF5), which report, view and ranges read.",
            group=WRITE,
            metavar="run.h5",
        ),
    ] = None
    keep: Annotated[
        str | None,
        Parameter(
            help="Samples whose activations the run file holds: all, worst:N (the N worst), or "
            "none.",
            group=WRITE,
            metavar="WHICH",
            show_default="worst:2, or what stays below 200 MB",
        ),
    ] = None
    save_plan: Annotated[
        str | None,
        File("new", (".yaml", ".yml")),
        Parameter(
            help="Write what was run as a plan (YAML): the precision of each layer, and all "
            "ranges.",
            group=WRITE,
            metavar="FILE.yaml",
        ),
    ] = None

    @property
    def quantization(self) -> QuantizationSpec:
        """See CandidateSettings; with the layers to pin."""
        return replace(super().quantization, pin=self.pin)
