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
        skipped: tensors that were asked for and cannot be captured, with the reason.
    """

    @property
    def dtypes(self) -> Mapping[str, np.dtype[np.generic]]: ...

    @property
    def skipped(self) -> tuple[Skipped, ...]: ...

    def run(self, feeds: Feeds) -> Tensors:
        """Execute once; arrays for every name in `dtypes`. Feeds of other names are ignored.

        Raises:
            BackendError: the runtime failed.
        """
        ...

    def close(self) -> None:
        """Free what the session holds. It must not be run again."""
        ...


class Backend(Protocol):
    """A runtime."""

    @property
    def name(self) -> str: ...

    def open(self, proto: onnx.ModelProto, capture: Sequence[str]) -> Session:
        """Prepare `proto` with the tensors `capture` observable, in addition to its outputs.

        Raises:
            ModelError: the runtime does not take this model.
            BackendError: the runtime failed.
        """
        ...
