"""Settings of `qdebug ranges`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from qdebug.config.candidate import BATCH_SIZE, CACHE, CUSTOM_OPS, DATA, FORCE, SAMPLES
from qdebug.config.data import DataSettings
from qdebug.config.option import LOOK, WHAT, DataLike, ModelLike, Option, Positive
from qdebug.config.values import unique
from qdebug.network.samplespec import SampleSpec
from qdebug.results.orders import ORDERS

_ORDERS = "; ".join(f"{name} ({order.title})" for name, order in ORDERS.items())


@dataclass(frozen=True)
class RangesSettings(DataSettings):
    """The settings of `qdebug ranges`."""

    source: Annotated[
        ModelLike,
        Option(
            "A run file, or an FP32 ONNX model.", metavar="RUN|MODEL", positional=True, reads=True
        ),
    ]
    calib_data: Annotated[
        DataLike | None,
        Option(f"Samples to run the model on: {DATA}.", WHAT, metavar="DATA", reads=True),
    ] = None
    holdout: Annotated[
        DataLike | None,
        Option(
            "Other samples, to see how far they exceed the ranges of the first.",
            WHAT,
            metavar="DATA",
            reads=True,
        ),
    ] = None
    samples: Annotated[Positive | None, SAMPLES] = None
    batch_size: Annotated[Positive | None, BATCH_SIZE] = None
    custom_op_library: Annotated[tuple[str, ...], CUSTOM_OPS] = ()
    cache: Annotated[bool, CACHE] = True
    tensors: Annotated[
        tuple[str, ...],
        Option(
            "Show only this tensor, with its histogram and the ranges by all methods; repeatable.",
            LOOK,
            metavar="NAME",
            flag="--tensor",
            unset="all",
            parse=unique,
        ),
    ] = ()
    top: Annotated[Positive, Option("Show the first N tensors.", LOOK, metavar="N")] = 20
    sort: Annotated[
        str,
        Option(
            f"The order of the tensors: {_ORDERS}.",
            LOOK,
            metavar="NAME",
            words=tuple(ORDERS),
        ),
    ] = next(iter(ORDERS))
    force: Annotated[bool, FORCE] = False

    @property
    def calibrates_on(self) -> SampleSpec | None:
        """The samples to run the model on."""
        if self.calib_data is None:
            return None
        return self.sample_spec(self.calib_data, self.samples, self.batch_size, "calib_data")

    @property
    def held_out(self) -> SampleSpec | None:
        """Other samples."""
        if self.holdout is None:
            return None
        return self.sample_spec(self.holdout, None, self.batch_size, "holdout", "")
