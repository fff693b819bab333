"""Edits of a plan as variants to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import onnx

from qdebug.backends.base import Backend
from qdebug.memo import digest_of
from qdebug.network.weights import model_digest
from qdebug.plan.lower import lower
from qdebug.plan.plan import BoundPlan, corrections_digest
from qdebug.run.variant import Variant, key_of
from qdebug.types import Precision


class PlannedVariants:
    """Variants of one plan for one network, which are lowered when they are run."""

    def __init__(self, bound: BoundPlan, backend: Backend) -> None:
        """Digests the network and the plan once."""
        self._bound, self._backend = bound, backend
        plan = replace(
            bound.plan,
            layers=dict(sorted(bound.plan.layers.items())),
            tensors=dict(sorted(bound.plan.tensors.items())),
            calibration="",  # names the data as they were spelled
        )
        how = key_of(backend)
        self._key = how and digest_of(
            model_digest(bound.layers.graph.proto),
            plan,
            corrections_digest(bound) if bound.corrections else "",
            how,
        )

    def with_layers(
        self, overrides: Mapping[str, Precision], capture: Mapping[str, str] | None = None
    ) -> Variant:
        """The plan with some layers in other precisions; layers that are not named stay."""
        known = self._bound.precisions
        changed = {n: p for n, p in overrides.items() if known[n] is not p}
        plan = replace(self._bound.plan, layers={**self._bound.plan.layers, **changed})
        bound = replace(self._bound, plan=plan, precisions={**known, **changed})
        key = self._key and digest_of(self._key, sorted((n, str(p)) for n, p in changed.items()))
        return Variant(partial(lowered, bound), self._backend, key, capture or {})


def lowered(bound: BoundPlan) -> onnx.ModelProto:
    """The model in the precisions of a plan.

    Raises:
        PlanError: it cannot be lowered.
    """
    return lower(bound).graph.proto
