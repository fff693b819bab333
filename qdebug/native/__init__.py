"""The compiled loops of the calibration's histograms: `compiled`, or None where no C compiler was
found at installation; then calibrators/gather.py does the same with numpy, slower."""

from __future__ import annotations

import logging

try:
    from qdebug.native import _native as compiled
except ImportError as error:
    compiled = None  # type: ignore[assignment]
    if error.name != "qdebug.native":  # it is there, and does not load: built for something else
        logging.getLogger(__name__).warning("the compiled histograms do not load: %s", error)

__all__ = ["compiled"]
