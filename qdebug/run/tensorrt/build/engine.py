"""A built engine, as data."""

from __future__ import annotations

from dataclasses import dataclass, field

from qdebug.run.tensorrt.build.messages import BuildWarning
from qdebug.types import Skipped


@dataclass(frozen=True)
class BuiltEngine:
    """What a build gave.

    Attributes:
        engine: the serialized engine; it runs only under the library that built it, on the GPU
            or the compute capabilities it was built for.
        log: everything the parser and the builder said, verbose, one `[TRT] [V] …` per message;
            it ends with the list of layers that were built.
        warnings: those of the log, each once.
        skipped: tensors that were asked for as outputs or debug tensors and cannot be, with why.
        seconds: wall time of parsing and building; of a cached engine, when it was built.
        key: what the cache knows it by: a hash of model, settings, library and device.
        cached: it was built earlier.
    """

    engine: bytes = field(repr=False)
    log: str = field(repr=False)
    warnings: tuple[BuildWarning, ...]
    skipped: tuple[Skipped, ...]
    seconds: float
    key: str
    cached: bool = False

    @property
    def size_bytes(self) -> int:
        """Of the serialized engine."""
        return len(self.engine)
