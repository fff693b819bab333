"""The end-to-end metrics by name. Adding one takes a file in this package and an entry here.

Help texts, messages and the reference pages read this list. Nothing here imports numpy: the command
line's `--help` reads it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any


@dataclass(frozen=True)
class BuiltInMetric:
    """An entry of the registry.

    `qdebug/metrics/tasks/<name>.py`, with underscores for hyphens, holds functions of
    `(outputs, labels, reference)`, each a mapping of arrays [samples, …] by name:

    - `score`, one number; or, where it is the mean over samples,
    - `per_sample`, float64 [samples]: the score of each sample;
    - `loss`, float64 [samples], where there is one: see TaskMetric.loss.

    Attributes:
        name: as users write it.
        meaning: in one line.
        needs_labels: the data must hold one array of labels.
        higher_is_better: of the score.
        is_share: it is a share of the samples, each of which counts as one.
    """

    name: str
    meaning: str
    needs_labels: bool
    higher_is_better: bool = True
    is_share: bool = False

    def function(self, name: str) -> Any:
        """One of its functions; None where it has none of that name."""
        module = resolve_name(f"{__package__}.{self.name.replace('-', '_')}")
        return getattr(module, name, None)


BUILT_IN = (
    BuiltInMetric(
        "top1",
        "the share of samples whose highest score is that of their label",
        needs_labels=True,
        is_share=True,
    ),
    BuiltInMetric(
        "agreement",
        "the share of samples whose highest score is where the reference has it",
        needs_labels=False,
        is_share=True,
    ),
)
"""End-to-end metrics by name; any other is a function of the user's."""

NAMES = tuple(metric.name for metric in BUILT_IN)
"""As users write them."""


def metric_usage() -> str:
    """The end-to-end metrics as a help text lists them."""
    return ", ".join([*NAMES, "file.py:function", "package.module:function"])
