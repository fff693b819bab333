"""What a runtime must offer: open a model, run it, close it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import onnx

from qdebug.errors import ModelError
from qdebug.network.graph import opset_of
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
        to its outputs. Names may repeat. Large initializers are external data, relative to the root
        of the file system; `qdebug.network.weights.with_data` gives a model that holds them.

        Raises:
            ModelError: the runtime does not take this model.
            BackendError: the runtime failed.
        """
        ...


def check_imports(proto: onnx.ModelProto, library: str) -> None:
    """Refuse an opset that is not known, and nodes of domains that the model does not import; for
    libraries that accept any opset number and look up operators by name alone.

    Args:
        library: what the model is for, as messages call it.

    Raises:
        ModelError: names the opset or the node.
    """
    known = onnx.defs.onnx_opset_version()
    if opset_of(proto) > known:
        raise ModelError(
            f"{library}: the model's opset is {opset_of(proto)}, the newest known is {known}",
            "Convert it to an older opset, or install a newer onnx.",
            code="QD-MODEL-OPSET",
        )
    imported = {"", "ai.onnx", *(o.domain for o in proto.opset_import)}
    for node in proto.graph.node:
        if node.domain not in imported:
            raise ModelError(
                f"{library}: node '{node.name}' ({node.op_type}) is of domain '{node.domain}', "
                "which the model does not import",
                "Check the model with onnx.checker.",
                code="QD-MODEL-DOMAIN",
            )
