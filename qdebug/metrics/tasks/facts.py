"""What a metric may know of the model: how to read its outputs follows from that."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class ModelFacts:
    """What a metric may know of the model.

    Attributes:
        inputs, outputs: shapes by name, None for an axis that is not fixed.
        metadata: the file's `metadata_props`.
        shares: of outputs whose values are known to be shares of 0 to 1 (True), or not to be.
    """

    inputs: Mapping[str, Shape]
    outputs: Mapping[str, Shape]
    metadata: Mapping[str, str] = field(default_factory=dict)
    shares: Mapping[str, bool] = field(default_factory=dict)

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of the first picture that is an input; None where they are not known."""
        for shape in self.inputs.values():
            if len(shape) == 4:
                height, width = shape[2:] if shape[1] in (1, 3, 4) else shape[1:3]
                if height and width:
                    return height, width
        written = self._literal("imgsz")
        if isinstance(written, (list, tuple)) and len(written) == 2:
            return int(written[0]), int(written[1])
        return None

    @property
    def classes(self) -> int | None:
        """How many classes the file's `names` list, as Ultralytics writes them."""
        names = self._literal("names")
        return len(names) if isinstance(names, (dict, list)) and names else None

    @property
    def is_end_to_end(self) -> bool:
        """Whether the file says, as Ultralytics does, that it needs no suppression."""
        return self._literal("end2end") is True

    @property
    def segments(self) -> bool:
        """Whether it finds masks of objects: unless the file says, as Ultralytics does, that its
        task is another one."""
        return self.metadata.get("task", "segment") == "segment"

    def _literal(self, key: str) -> object:
        try:
            return ast.literal_eval(self.metadata.get(key, "None"))
        except (ValueError, SyntaxError):
            return None
