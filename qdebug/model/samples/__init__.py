"""Reads what the user gives as DATA into samples for a model, lazily.

Formats:
- `.npz`, `.npy`, `.h5`/`.hdf5` (`arrays`): arrays by input name, samples on the leading axis. A
  lone array needs no name when the model has one input. In an HDF5 file a name is a path; a
  directory of `.npy` named after the inputs is the same, and so is a dict of arrays in memory.
- directories with one file per feed: `.npz`, or `.npy` for a single-input model; ONNX
  `test_data_set_*`; Polygraphy's inputs JSON, a file or a directory of them (`feed_files`);
  `script.py:function`, or an iterable in memory (`iterables`). Numbers in names sort as numbers.
- In names, '/' and ':' may be replaced by '_'.

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

from qdebug.model.samples.opening import open_samples, samples_in_memory
from qdebug.model.samples.samples import Batch, FeedSource, SampleArray, Samples

__all__ = ["Batch", "FeedSource", "SampleArray", "Samples", "open_samples", "samples_in_memory"]
