from qdebug.types import Array

def channel_sums(
    ref: Array, cand: Array, channels: int, inner: int, err: Array, sig: Array
) -> None: ...
def row_sums(
    ref: Array, cand: Array, limit: float
) -> tuple[float, float, float, float, float, float, float, float, int]: ...
