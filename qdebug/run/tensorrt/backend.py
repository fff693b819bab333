"""TensorRT as a Backend: each model is built, loaded and executed on the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import onnx

from qdebug.run.base import Session
from qdebug.run.tensorrt.execute.observe.debug import open_unfused, open_with_debug
from qdebug.run.tensorrt.execute.observe.outputs import open_with_outputs
from qdebug.run.tensorrt.execute.observe.ways import CaptureWay
from qdebug.run.tensorrt.execute.session import EngineSession
from qdebug.run.tensorrt.factory import EngineFactory
from qdebug.types import Skipped


class TensorRTBackend:
    """See Backend."""

    def __init__(
        self,
        maker: EngineFactory,
        way: CaptureWay = CaptureWay.OUTPUTS,
        *,
        group_bytes: int | None = None,
    ) -> None:
        """
        Args:
            maker: builds and loads the engines.
            way: how captured tensors are observed.
            group_bytes: how many bytes of tensors one engine may have as outputs beside the
                model's; None sets no limit.
        """
        self._maker = maker
        self._way = way
        self._group_bytes = group_bytes

    @property
    def name(self) -> str:
        """See Backend.name."""
        return str(self._maker.library.kind)

    def open(self, proto: onnx.ModelProto, capture: Sequence[str]) -> Session:
        """See Backend.open.

        Raises:
            UsageError: settings that the library does not have; pycuda is not installed.
        """
        present = {v.name for v in proto.graph.output}
        computed = {t for n in proto.graph.node for t in n.output if t}
        asked = [t for t in dict.fromkeys(capture) if t not in present]
        absent = [
            Skipped(t, "no node of the model computes it") for t in asked if t not in computed
        ]
        wanted = [t for t in asked if t in computed]
        if not wanted:
            return EngineSession(self._maker.make(proto).engine, skipped=absent)
        match self._way:
            case CaptureWay.OUTPUTS:
                return open_with_outputs(self._maker, proto, wanted, absent, self._group_bytes)
            case CaptureWay.DEBUG:
                return open_with_debug(self._maker, proto, wanted, absent)
            case CaptureWay.UNFUSED:
                return open_unfused(self._maker, proto, wanted, absent)
            case _:
                assert_never(self._way)
