from qdebug.types import Array

def row_sums(
    ref: Array, cand: Array, limit: float
) -> tuple[float, float, float, float, float, float, float, float, int]: ...
