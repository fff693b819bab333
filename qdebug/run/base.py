"""What a runtime must offer: open a model, run it, close it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import onnx

from qdebug.types import Feeds, Skipped, Tensors


class Session(Protocol):
    """A model ready to run. `run` may be called from several threads at once.

    Attributes:
        dtypes: the tensors that `run` returns, with their element types.
        skipped: tensors that were asked for, or are outputs, and cannot be captured, with the
            reason. A name that the model does not compute (unknown, an input, a constant) is one.
    """

    @property
    def dtypes(self) -> Mapping[str, np.dtype[np.generic]]: ...

    @property
    def skipped(self) -> tuple[Skipped, ...]: ...

    def run(self, feeds: Feeds) -> Tensors:
        """Execute once; arrays for every name in `dtypes`. Feeds of other names are ignored.

        Raises:
            BackendError: the runtime failed, a feed is missing or does not fit, or the session is
                closed.
        """
        ...

    def close(self) -> None:
        """Free what the session holds. It cannot be run again; closing it twice does nothing."""
        ...


class Backend(Protocol):
    """A runtime."""

    @property
    def name(self) -> str: ...

    def open(self, proto: onnx.ModelProto, capture: Sequence[str]) -> Session:
        """Prepare `proto`, which is not modified, with the tensors `capture` observable in addition
        to its outputs. Names may repeat.

        Raises:
            ModelError: the runtime does not take this model.
            BackendError: the runtime failed.
        """
        ...
