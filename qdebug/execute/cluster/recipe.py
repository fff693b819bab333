"""How a worker makes the pair that the client compares: from the files, the plan with all its
ranges, and what the client found out about a quantized model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from qdebug.config.compare import CompareSettings
from qdebug.execute.cluster.dispatch import Cluster
from qdebug.execute.cluster.unit import Place, SharedModel
from qdebug.execute.control_flow import open_model
from qdebug.execute.model_pair import explicit, for_backend, names_model, sources_of
from qdebug.network.layers import find_layers
from qdebug.network.prepare import QDQ_OPSET, Model
from qdebug.plan.correspond import Proof
from qdebug.plan.pair import ModelPair, planned_pair, quantized_pair
from qdebug.plan.plan import BoundPlan, Correction, PrecisionPlan, bind_plan
from qdebug.plan.rewrite.restore import Absorbed


@dataclass(frozen=True)
class PairRecipe:
    """What `recipe_of` takes of a pair.

    Attributes:
        model: the user's.
        plan: with all ranges; None for a quantized model.
        reference: the FP32 model of a quantized one, where it was given.
        guessed, proof, tensors: of a quantized model, as in ModelPair.
        corrections: see BoundPlan.
        backend: what the candidate is made for.
    """

    model: SharedModel
    plan: PrecisionPlan | None
    backend: str
    reference: SharedModel | None = None
    guessed: tuple[Absorbed, ...] = ()
    proof: Proof | None = None
    tensors: frozenset[str] = frozenset()
    corrections: Mapping[str, Correction] = field(default_factory=dict)

    def made(self, place: Place) -> ModelPair:
        """The pair.

        Raises:
            NotHere: a file must be sent first.
            QdebugError: as where the pair was made first, which is where it is raised.
        """
        return place.last.of(self, lambda: self._made(place))

    def _made(self, place: Place) -> ModelPair:
        model = self.model.prepared(place)
        if self.plan is not None:
            bound = bind_plan(self.plan, model, find_layers(model.graph))
            return planned_pair(model, replace(bound, corrections=self.corrections))
        model, _ = explicit(model)
        if self.reference is None:
            return for_backend(quantized_pair(model, guessed=self.guessed), self.backend)
        # Not by `prepared`: that would forget the other model.
        reference = self.reference.read(place)
        pair = quantized_pair(model, reference.graph, str(reference.file.path))
        kept = {t: c for t, c in pair.tensors.items() if t in self.tensors}
        return for_backend(replace(pair, tensors=kept, proof=self.proof), self.backend)


def known_pair(cluster: Cluster | None, model: Model, bound: BoundPlan) -> ModelPair:
    """The pair of a plan, which the cluster knows from now on if it knows the model."""
    pair = planned_pair(model, bound)
    if cluster is not None and cluster.knows(model.graph):
        shared = cluster.shared(model.graph, SharedModel)
        recipe = PairRecipe(shared, bound.plan, "simulation", corrections=bound.corrections)
        cluster.remember(pair, recipe)
    return pair


def recipe_of(
    cluster: Cluster,
    pair: ModelPair,
    settings: CompareSettings,
    given: Model,
) -> PairRecipe:
    """How to make `pair` elsewhere, which the cluster knows from now on; `given` is the user's
    model, which it knows already."""
    reference = None
    if names_model(settings.reference):
        opened = open_model(settings.reference, QDQ_OPSET, sources_of(settings), cluster.sessions)
        reference = cluster.model(settings.reference, QDQ_OPSET, opened)
    recipe = PairRecipe(
        model=cluster.shared(given.graph, SharedModel),
        plan=pair.plan,
        backend=settings.backend,
        reference=reference,
        guessed=pair.guessed,
        proof=pair.proof,
        tensors=frozenset(pair.tensors),
    )
    cluster.remember(pair, recipe)
    return recipe
