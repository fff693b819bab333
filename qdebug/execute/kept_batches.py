"""What was kept of each batch: in memory as far as there is room, the rest in a temporary file."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

import numpy as np

from qdebug.network.samples import Batch
from qdebug.network.samples.spill import Spill, Spilled
from qdebug.types import Tensors


class KeptBatches(MutableMapping[Batch, Tensors]):
    """Tensors by batch, in the order in which they came. What goes to the file is read from there
    whenever it is asked for, from any thread."""

    def __init__(self, room_bytes: float) -> None:
        self._room = room_bytes
        self._kept: dict[Batch, Tensors | tuple[tuple[str, ...], Spilled]] = {}
        self._spill = Spill()

    def __setitem__(self, batch: Batch, tensors: Tensors) -> None:
        self._room -= sum(array.nbytes for array in tensors.values())
        self._kept[batch] = tensors
        are_numbers = all(np.asarray(array).dtype.kind in "biufc" for array in tensors.values())
        if self._room >= 0 or not are_numbers:
            return
        try:
            arrays = [np.ascontiguousarray(array) for array in tensors.values()]
            self._kept[batch] = (*tensors,), self._spill.write(arrays)
        except OSError:  # no room there: then it stays in memory
            return

    def __getitem__(self, batch: Batch) -> Tensors:
        kept = self._kept[batch]
        if not isinstance(kept, tuple):
            return kept
        names, spilled = kept
        return dict(zip(names, self._spill.read(spilled), strict=True))

    def __delitem__(self, batch: Batch) -> None:
        del self._kept[batch]

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)
