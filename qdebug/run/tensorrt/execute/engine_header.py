"""The first bytes of a serialized engine of TensorRT for RTX, which tell who built it.

Not documented; seen, alike, in engines of 1.6.1 and 1.7.1: the letters "vtrt", at 16 the size of
the whole as a 64-bit number, at 24 the version, a byte for each of its four numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

_MAGIC = b"vtrt"
_LENGTH = 64


@dataclass(frozen=True)
class EngineHeader:
    """What the header tells.

    Attributes:
        version: of the library that built it, such as (1, 7, 1, 116).
        whole: nothing is cut off.
    """

    version: tuple[int, ...]
    whole: bool

    @property
    def builder(self) -> str:
        """The library that built it, for people."""
        return f"TensorRT for RTX {'.'.join(map(str, self.version))}"


def engine_header(data: bytes) -> EngineHeader | None:
    """The header of an engine; None for an engine of another library, or anything else."""
    if data[:4] != _MAGIC or len(data) < _LENGTH:
        return None
    size = int.from_bytes(data[16:24], "little")
    return EngineHeader(tuple(data[24:28]), whole=size == len(data))
