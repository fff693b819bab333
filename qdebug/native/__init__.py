"""The compiled inner loops: `compiled`, or None where no C compiler was found at installation.

Everything works without them, slower: calibrators/gather.py and measure/kernel.py then do the same
with numpy and BLAS.
"""

from __future__ import annotations

import logging

try:
    from qdebug.native import _native as compiled
except ImportError as error:
    compiled = None  # type: ignore[assignment]
    if error.name != "qdebug.native":  # it is there, and does not load: built for something else
        logging.getLogger(__name__).warning("the compiled inner loops do not load: %s", error)

__all__ = ["compiled"]
