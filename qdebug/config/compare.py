"""Settings of `qdebug compare`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from qdebug.config.candidate import (
    ALLOW_UNQUANTIZED,
    FORCE,
    HTML,
    MEMORY_BUDGET,
    CandidateSettings,
)
from qdebug.config.cluster import ClusterSettings
from qdebug.config.option import GATE, WHAT, WRITE, ModelLike, Option, Positive
from qdebug.measure.metrics import gate_usage
from qdebug.run.segmentation import DEFAULT_BUDGET

StorageName = Literal["float32", "float16"]
EffectName = Literal["exact", "fast", "none"]


@dataclass(frozen=True)
class CompareSettings(CandidateSettings, ClusterSettings):
    """The settings of `qdebug compare`, besides those that it shares with other commands."""

    reference: Annotated[
        ModelLike | None,
        Option(
            "The FP32 model of one that carries Q/DQ, or a run file whose reference activations "
            "are reused.",
            WHAT,
            metavar="FILE",
            reads=True,
            replaced_by="output",
        ),
    ] = None
    local_samples: Annotated[
        Positive | None,
        Option(
            "Measure local errors on N of the samples, rounded up to whole batches, of which at "
            "least two.",
            WHAT,
            metavar="N",
            unset="16, of a large model fewer",
        ),
    ] = None
    effect: Annotated[
        EffectName,
        Option(
            "Measure what each layer costs at the outputs: exact takes every layer and all "
            "samples, fast the leading layers on some, within a bound on the work.",
            WHAT,
        ),
    ] = "fast"
    try_remedies: Annotated[
        bool,
        Option(
            "Try every remedy of repair on each of the leading layers, and say what it gains. Fits "
            "them on the calibration samples, or on half of those compared.",
            WHAT,
        ),
    ] = False
    memory_budget: Annotated[int, MEMORY_BUDGET] = DEFAULT_BUDGET
    fail_on: Annotated[
        tuple[str, ...],
        Option(
            'A condition that must hold, such as "output.cosine>=0.99", "layer.sqnr_db>=20" or '
            f'"metric>=0.95"; repeatable. Metrics: {gate_usage()}.',
            GATE,
            metavar="CONDITION",
        ),
    ] = ()
    allow_unquantized: Annotated[bool, ALLOW_UNQUANTIZED] = False
    output: Annotated[
        str | None,
        Option(
            "Write a run file (HDF5): results, plan, ranges and activations.",
            WRITE,
            metavar="run.h5",
            suffixes=(".h5", ".hdf5"),
            short="-o",
            writes="new",
        ),
    ] = None
    keep: Annotated[
        str,
        Option("Activations to keep in it: all, worst:N samples, or none.", WRITE, metavar="WHICH"),
    ] = "worst:2"
    keep_dtype: Annotated[StorageName, Option("How activations are kept.", WRITE)] = "float32"
    save_plan: Annotated[
        str | None,
        Option(
            "Write the plan that was run, ranges included.",
            WRITE,
            metavar="FILE.yaml",
            suffixes=(".yaml", ".yml"),
            writes="new",
        ),
    ] = None
    html: Annotated[str | None, HTML] = None
    force: Annotated[bool, FORCE] = False
