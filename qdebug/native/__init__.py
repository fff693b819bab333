"""The compiled inner loops: `compiled`, or None where no C compiler was found at installation.

Everything works without them, slower: calibrators/gather.py and measure/kernel.py then do the same
with numpy and BLAS.
"""

from __future__ import annotations

try:
    from qdebug.native import _native as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

__all__ = ["compiled"]
