"""Reads what the user gives as DATA into samples for a model, lazily.

`network/dataformats.py` lists the formats, `readers` has a file for each. A lone array needs no
name where the model has one input; a dict of arrays in memory is as an `.npz`. Numbers in names of
files sort as numbers, and in names of inputs '/' and ':' may be replaced by '_'.

Axes, for an input of rank r:
- A stacked array of rank r has its samples on the model's own leading axis: batches of the
  model's fixed size, or of any size when that axis is dynamic for every input. They must fill
  the fixed batches; nothing is dropped silently.
- A stacked array of rank r + 1 holds one whole feed per sample; batches are of 1.
- A feed has rank r, or r - 1 and is given the leading axis. Its samples are the rows of its
  inputs' common leading axis; see `feeds` for how feeds become batches.

Arrays that are not inputs (labels) are `extras`, one row per sample; 0-d ones of stacked files are
left out. NaN and Inf are refused when a sample is read. Pickles are never loaded.
"""

from __future__ import annotations

from qdebug.network.samples.opening import open_samples
from qdebug.network.samples.readers.memory import samples_in_memory
from qdebug.network.samples.samples import Batch, FeedSource, SampleArray, Samples

__all__ = ["Batch", "FeedSource", "SampleArray", "Samples", "open_samples", "samples_in_memory"]
