"""Sessions of assembled candidates, which share their constants."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from qdebug.backends.base import Session
from qdebug.backends.options import DEFAULT_SESSIONS, SessionSettings
from qdebug.backends.ort_fast.assemble import Assembled, Assembler
from qdebug.backends.ort_fast.cut_points import CutPoint
from qdebug.backends.simulation import SimulationSession, loading
from qdebug.types import Array, Precision


class PartSessions:
    """Opens what was put together from parts of one workshop; from several threads if need be."""

    def __init__(
        self,
        constants: Mapping[str, Array],
        threads: int,
        sessions: SessionSettings = DEFAULT_SESSIONS,
    ) -> None:
        """`constants` are those that sessions are handed, by name: it may grow. `threads` is the
        number of threads within one operator."""
        self._constants = constants
        self._threads = threads
        self._sessions = sessions
        self._values: dict[str, Any] = {}
        self._lock = threading.Lock()

    def open_part(
        self, candidate: Assembled, start: CutPoint | None, stored: Sequence[CutPoint]
    ) -> Session:
        """A session of a candidate, or of what lies behind `start`; see `Assembled.piece`.

        Raises:
            ModelError: ONNX Runtime does not take the model.
            BackendError: ONNX Runtime failed.
        """
        with loading():
            piece = candidate.piece(start, stored)
            values = {name: self._value(name) for name in piece.constants}
            return SimulationSession(
                piece.model,
                self._threads,
                constants=values,
                mapped_bytes=candidate.mapped_bytes,
                operators=self._sessions.operators,
            )

    def _value(self, name: str) -> Any:
        """The one copy of a constant that all sessions read."""
        import onnxruntime as ort

        with self._lock:
            if name not in self._values:
                array = self._constants[name]
                self._values[name] = ort.OrtValue.ortvalue_from_numpy(array)
            return self._values[name]


class CandidateSessions(PartSessions):
    """Opens candidates of one base plan; from several threads if need be."""

    def __init__(
        self, assembler: Assembler, threads: int, sessions: SessionSettings = DEFAULT_SESSIONS
    ) -> None:
        """`threads` is the number of threads within one operator."""
        super().__init__(assembler.constants, threads, sessions)
        self._assembler = assembler

    def takes(self, precisions: Mapping[str, Precision]) -> bool:
        """See Assembler.takes."""
        return self._assembler.takes(precisions)

    def open(self, precisions: Mapping[str, Precision], *, kernels: bool) -> Session:
        """A session of the model in `precisions`, by layer; see `Assembler.assemble`.

        Raises:
            ModelError: ONNX Runtime does not take the model.
            BackendError: ONNX Runtime failed.
        """
        return self.open_part(self._assembler.assemble(precisions, kernels=kernels), None, ())

    def assemble(self, precisions: Mapping[str, Precision], *, kernels: bool) -> Assembled:
        """The model in `precisions`, by layer; see `Assembler.assemble`."""
        return self._assembler.assemble(precisions, kernels=kernels)
