"""Why the outputs of a framework and of its ONNX export differ: causes that are tried one by one,
on a few samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import onnx

from qdebug.commands.check.variants import of_arrays
from qdebug.commands.framework.capture import weight_digest
from qdebug.commands.framework.export_faults import EPSILON, faults_of, rounded_weights
from qdebug.commands.framework.framework_arrays import FrameworkArrays
from qdebug.commands.framework.input_scalings import (
    PICTURE_AXES,
    Scaling,
    fitted_scaling,
    usual_scalings,
)
from qdebug.commands.framework.module_scopes import aligned
from qdebug.errors import QdebugError
from qdebug.execute.context import Context
from qdebug.metrics.accumulate import CANDIDATE, REFERENCE, ErrorTotals, ExecutedBatch
from qdebug.metrics.sums import ErrorSums, measure, sample_energies
from qdebug.metrics.tensor import metrics_of, sqnr_db
from qdebug.network.graph import Graph
from qdebug.network.samples import Samples
from qdebug.network.samples.samples import Batch
from qdebug.network.samples.subset import SampleSubset, first, whole
from qdebug.network.weights import size_with_data, values_of, with_data
from qdebug.results.framework import ExportCause, FrameworkResult
from qdebug.results.words import in_decibels
from qdebug.types import Array, Feeds, Skipped, TensorSpec
from qdebug.wording import counted

_TRIED_ON = 8
"""Samples that causes are tried on."""
_MOST_BYTES = 1 << 30
"""Of a model of which changed copies are made to try causes."""
_BETTER_DB = 10.0
"""A change that brings the outputs so much nearer, and not all the way, is a suspicion."""
_LEAST_VALUES = 8
"""Of a channel, to tell a factor and an offset from chance."""
_FEWER_DIGITS_DB = 40.0
"""TF32 has 10 bits of a fraction, as FP16 has: an operator is then 60 to 70 dB off, a network down
to 40."""
_ROUNDING = 1e-5
"""Factors that are nearer to 1 are 1."""
_APART_DB = 20.0
"""Samples that are wrong are so by more than the largest rounding: else some just round more."""
_MOST_BY_EPSILON = 0.1
"""Another epsilon changes a factor by less, as long as variances are well above it."""
_MOST_NAMED = 3
"""Outputs that are called otherwise; the remedy holds for the others, too."""


@dataclass(frozen=True)
class Matched:
    """Which tensor each array of the framework is, in the ONNX model's order.

    Attributes:
        stored_db: what is left of each array's precision as it was stored.
    """

    tensors: Mapping[str, str]
    how: Mapping[str, str]
    stored_db: Mapping[str, float]
    unmatched: tuple[Skipped, ...]


class BySample:
    """A sink that keeps the noise of the outputs by sample, and what tells samples apart.

    Attributes:
        ratios: noise by signal of the worst output, of each sample.
        signatures: of the framework's outputs and the model's: complex [samples, outputs].
    """

    def __init__(self, outputs: Sequence[str]) -> None:
        self._outputs = outputs
        self.ratios: list[float] = []
        self.signatures: dict[str, list[Array]] = {REFERENCE: [], CANDIDATE: []}

    def __call__(self, executed: ExecutedBatch, _: Mapping[str, ErrorTotals]) -> None:
        """See Sink."""
        reference, own, count = executed.of(REFERENCE), executed.of(CANDIDATE), executed.batch.count
        worst = np.zeros(count)
        for tensor in self._outputs:
            if tensor in reference and len(reference[tensor]) % count == 0:
                errors, signals = sample_energies(reference[tensor], own[tensor], count)
                worst = np.maximum(worst, errors / np.maximum(signals, np.finfo(np.float64).tiny))
        self.ratios += worst.tolist()
        for run, tensors in ((REFERENCE, reference), (CANDIDATE, own)):
            each = [np.zeros(count)]
            each += [_signature(tensors[t], count) for t in self._outputs if t in tensors]
            self.signatures[run] += list(np.stack(each, axis=1))

    def order(self, samples: int) -> list[int]:
        """The framework's sample that is nearest to each of the first ones of the model."""
        theirs = np.array(self.signatures[REFERENCE])
        return [
            int(np.abs(theirs - own).sum(axis=1).argmin())
            for own in self.signatures[CANDIDATE][:samples]
        ]

    def outputs(self, tensors: Iterable[str]) -> dict[str, str]:
        """The output of the model to whose values those of each of the framework's are nearest, by
        all samples."""
        theirs, own = (np.array(self.signatures[run])[:, 1:] for run in (REFERENCE, CANDIDATE))
        return {
            tensor: self._outputs[
                int(np.abs(own - theirs[:, [self._outputs.index(tensor)]]).sum(axis=0).argmin())
            ]
            for tensor in tensors
        }


def _signature(array: Array, samples: int) -> Array:
    """A weighted sum of the values of each sample, complex [samples]; 0 where they cannot be told
    apart."""
    if len(array) % samples:
        return np.zeros(samples, np.complex128)
    rows = np.nan_to_num(array.reshape(samples, -1).astype(np.float64))
    return np.asarray(rows @ np.exp(1j * np.arange(rows.shape[1])))


@dataclass
class Causes:
    """Why the outputs differ, by trying."""

    result: FrameworkResult
    context: Context
    graph: Graph
    samples: Samples
    arrays: FrameworkArrays
    matched: Matched
    by_sample: BySample
    causes: list[ExportCause] = field(default_factory=list)
    tried: int = 0

    def explained(self) -> FrameworkResult:
        """The result with its causes, the proven ones first."""
        self._by_record()
        if not (self._by_order() or self._by_names()):
            self._by_samples()
        if size_with_data(self.graph.proto) <= _MOST_BYTES:
            proto = with_data(self.graph.proto)
            self._by_changes(proto)
            self._by_preparation()
            self._by_rounded_weights(proto)
        self._by_channels()
        self._by_place()
        self.causes.sort(key=lambda c: (not c.proven, -(c.sqnr_db or -math.inf)))
        return replace(self.result, causes=tuple(self.causes), tried=self.tried)

    def _add(
        self,
        label: str,
        evidence: str,
        remedy: str,
        sqnr: float | None = None,
        *,
        proven: bool = False,
    ) -> None:
        self.causes.append(ExportCause(label, evidence, remedy, sqnr, proven))

    @property
    def _before_db(self) -> float:
        return self.result.worst.sqnr_db

    def _outputs(self) -> dict[str, str]:
        """The model's output that each array of the framework is compared with."""
        return {n: t for n, t in self.matched.tensors.items() if t in self.graph.outputs}

    def _subset(self) -> SampleSubset:
        return first(whole(self.samples), _TRIED_ON)

    def _outputs_db(
        self,
        proto: onnx.ModelProto,
        change: Callable[[Array], Array] | None = None,
        order: Sequence[int] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> float:
        """The SQNR of the worst output of a changed model, or with changed inputs, against the
        framework's (of its samples `order`, its arrays `names` as these tensors), on a few samples;
        -inf where it does not run."""
        names = names or self._outputs()
        sums: dict[str, ErrorSums] = {}
        self.tried += 1
        try:
            with closing(self.context.backend.open(proto, [])) as session:
                for batch in self._subset().batches:
                    feeds = self.samples.feeds(batch.start, batch.count)
                    values = self._framework_values(batch, feeds, order)
                    own = session.run({n: change(x) for n, x in feeds.items()} if change else feeds)
                    for name, tensor in names.items():
                        value = aligned(values[name], own[tensor].shape)
                        if value is None:
                            return -math.inf
                        measured = measure(value, own[tensor], samples=batch.count)
                        sums[tensor] = sums.get(tensor, ErrorSums()).merge(measured)
        except QdebugError:  # another mode may not run on this network
            return -math.inf
        worst = min((metrics_of(s).sqnr_db for s in sums.values()), default=-math.inf)
        return -math.inf if math.isnan(worst) else worst

    def _framework_values(
        self, batch: Batch, feeds: Feeds, order: Sequence[int] | None
    ) -> dict[str, Array]:
        if order is None:
            return self.arrays.read(batch.start, batch.count, feeds)
        rows = [self.arrays.read(k, 1, feeds) for k in order[batch.start :][: batch.count]]
        return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}

    def _by_changes(self, proto: onnx.ModelProto) -> None:
        best: dict[str, tuple[float, str, str]] = {}
        base = self._outputs_db(proto)
        self.tried -= 1
        for fault in faults_of(proto):
            changed = onnx.ModelProto()
            changed.CopyFrom(proto)
            fault.change(changed)
            reached = self._outputs_db(changed)
            if reached > best.get(fault.label, (base + _BETTER_DB, "", ""))[0]:
                best[fault.label] = reached, fault.undone, fault.remedy
        for label, (reached, undone, remedy) in best.items():
            self._measured(label, undone, remedy, reached, base)

    def _measured(self, label: str, undone: str, remedy: str, reached: float, base: float) -> None:
        proven = reached >= self.result.limit_db
        how = "the outputs agree" if proven else "they are nearer"
        count = counted(self._subset().count, "sample")
        self._add(
            label,
            f"{undone}, {how}: {in_decibels(reached)} in place of {in_decibels(base)} on {count}",
            remedy,
            reached,
            proven=proven,
        )

    def _by_preparation(self) -> None:
        """Whether the framework's run had the same samples prepared otherwise."""
        inputs = [spec for spec in self.samples.inputs if spec.dtype.kind == "f"]
        if len(inputs) != 1:
            return
        base = self._outputs_db(self.graph.proto)
        self.tried -= 1
        for name, change in self._preparations(inputs[0]):
            reached = self._outputs_db(self.graph.proto, change)
            if reached >= self.result.limit_db:
                self._measured(
                    "preprocessing",
                    f"with {name}",
                    "Prepare the samples as the framework's run did.",
                    reached,
                    base,
                )
                return

    def _preparations(self, spec: TensorSpec) -> Iterator[tuple[str, Callable[[Array], Array]]]:
        """Other ways of preparing an input, by name."""
        start = next(iter(self._subset().batches))
        some = self.samples.feeds(start.start, start.count)[spec.name]
        for variant in of_arrays(spec, some) if len(spec.shape) == PICTURE_AXES else ():
            if variant.change is not None and variant.kind != "value-range":
                yield variant.name, partial(_prepared, change=variant.change)
        for scaling in usual_scalings(spec):
            yield f"the samples {scaling.name}", scaling
        fitted = self._fitted(spec)
        if fitted is not None:
            yield f"the samples {fitted.name}", fitted

    def _fitted(self, spec: TensorSpec) -> Scaling | None:
        """By the first activation, where none before it agrees. Any of the framework's that has its
        shape may be it: which one is told by values, and these are others."""
        tensor, batch = self.result.first_differing, next(iter(self._subset().batches))
        if not tensor or self.result.last_agreeing or tensor in self.graph.outputs:
            return None
        feeds = self.samples.feeds(batch.start, batch.count)
        arrays = self.arrays.read(batch.start, batch.count, feeds).values()
        with closing(self.context.backend.open(self.graph.proto, [tensor])) as session:

            def own(samples: Array) -> Array:
                return session.run({**feeds, spec.name: samples})[tensor]

            shape = own(feeds[spec.name]).shape
            values = [v for v in (aligned(array, shape) for array in arrays) if v is not None]
            try:
                return fitted_scaling(spec, feeds[spec.name], own, values) if values else None
            except (QdebugError, np.linalg.LinAlgError):  # it may not run on such samples
                return None

    def _by_order(self) -> bool:
        """Whether the framework's arrays are of the same samples in another order."""
        order = self.by_sample.order(self._subset().count)
        other = next((k for k, theirs in enumerate(order) if k != theirs), None)
        if self.arrays.digests is not None or other is None or len({*order}) < len(order):
            return False
        base = self._outputs_db(self.graph.proto)
        reached = self._outputs_db(self.graph.proto, order=order)
        self.tried -= 1
        if reached < self.result.limit_db:
            return False
        self._measured(
            "sample-order",
            "with the framework's samples in another order, its sample "
            f"{order[other]} as sample {other}",
            "Give the framework's outputs in the order of the samples that are compared.",
            reached,
            base,
        )
        return True

    def _by_names(self) -> bool:
        """Whether the framework's arrays are the same outputs by other names: each is paired with
        the output that it is nearest to, and the pairs are tried."""
        outputs = self._outputs()
        paired = self.by_sample.outputs(outputs.values())
        names = {name: paired[tensor] for name, tensor in outputs.items()}
        if names == outputs or len({*names.values()}) < len(names):
            return False
        base = self._outputs_db(self.graph.proto)
        reached = self._outputs_db(self.graph.proto, names=names)
        self.tried -= 1
        if reached < self.result.limit_db:
            return False
        others = [f"'{n}' as '{t}'" for n, t in names.items() if t != outputs[n]]
        self._measured(
            "output-names",
            f"with the framework's {', '.join(others[:_MOST_NAMED])} of the model",
            "Name the framework's arrays as the outputs of the model that they are.",
            reached,
            base,
        )
        return True

    def _by_samples(self) -> None:
        """Some samples agree to rounding, and others do not by far."""
        limit = 10 ** (-self.result.limit_db / 10)
        ratios = np.array(self.by_sample.ratios)
        right, wrong = ratios[ratios <= limit], ratios[ratios > limit]
        if not (len(right) and len(wrong)) or wrong.min() < limit * 10 ** (_APART_DB / 10):
            return
        count, start = counted(len(ratios), "sample"), int(np.argmax(ratios > limit))
        self._add(
            "frozen",
            f"{len(right)} of {count} agree to rounding, the others are far off, first {start}",
            "A branch or a size that tracing froze fits some samples only: export with "
            "torch.export and dynamic shapes, or write the branch with torch.where.",
        )

    def _by_channels(self) -> None:
        """The first tensor that differs is that of the ONNX model times a factor plus an offset for
        each channel: another normalization, which was folded into the operator before it."""
        tensor = self.result.first_differing
        name = next((n for n, t in self.matched.tensors.items() if t == tensor), "")
        if not name or any(c.proven for c in self.causes):
            return
        pairs = []
        with closing(self.context.backend.open(self.graph.proto, [tensor])) as session:
            for batch in self._subset().batches:
                feeds = self.samples.feeds(batch.start, batch.count)
                own = session.run(feeds)[tensor]
                value = aligned(self.arrays.read(batch.start, batch.count, feeds)[name], own.shape)
                if value is None or own.ndim < 2:
                    return
                pairs.append(tuple(_by_channel(array) for array in (own, value)))
        own, value = (np.concatenate(side, axis=1) for side in zip(*pairs, strict=True))
        if own.shape[1] < _LEAST_VALUES:
            return
        factors, left = _affine(own, value)
        if sqnr_db(float(np.square(value).sum()), left) < self.result.limit_db:
            return
        low, high = factors.min(), factors.max()
        evidence = (
            f"each channel of '{name}' is that of the ONNX model times a factor ({low:.4g} to "
            f"{high:.4g}) plus an offset"
        )
        one_way = low >= 1 - _ROUNDING or high <= 1 + _ROUNDING
        if one_way and max(high - 1, 1 - low) <= _MOST_BY_EPSILON:
            self._add("epsilon", f"{evidence}, all to one side, as another epsilon gives", EPSILON)
            return
        self._add(
            "batch-norm",
            f"{evidence}, as other statistics or weights of a BatchNormalization give",
            "Call model.eval() before the export and before the capture, and export the weights "
            "that the framework runs with.",
        )

    def _by_rounded_weights(self, proto: onnx.ModelProto) -> None:
        rounded = rounded_weights(proto)
        if rounded and not any(c.label == "half-weights" for c in self.causes):
            remedy = "Export the weights in FP32: module.float() before the export."
            self._add("half-weights", f"in the ONNX model {rounded}", remedy)

    def _by_place(self) -> None:
        """The difference begins at an operator with weights, and nothing else explains it."""
        tensor, last = self.result.first_differing, self.result.last_agreeing
        producer = self.graph.producers.get(tensor)
        if self.causes or producer is None or not self._has_weights(tensor):
            return
        begins = next(t for t in self.result.compared if t.tensor == tensor)
        after = f", after '{last}' agrees" if last else ""
        evidence = f"the difference begins at '{begins.name}' ({begins.sqnr_db:.1f} dB){after}"
        if begins.sqnr_db >= _FEWER_DIGITS_DB:
            self._add(
                "fewer-digits",
                f"{evidence}, by as much as TF32 or half weights give",
                "Run the framework in FP32: without autocast, and with "
                "torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False.",
            )
            return
        self._add(
            "other-weights",
            f"{evidence}, an operator with weights, and no setting of it explains that",
            "Check that the export has the checkpoint that the framework runs with: "
            "qdebug.capture compares the weights.",
        )

    def _has_weights(self, tensor: str) -> bool:
        """Whether an operator with constants of several axes gives it, perhaps through a bias."""
        node = self.graph.producers.get(tensor)
        for _ in range(2):
            if node is None:
                return False
            constants = (self.graph.initializers.get(t) for t in node.inputs)
            if any(c is not None and len(c.dims) > 1 for c in constants):
                return True
            node = next(
                (self.graph.producers[t] for t in node.inputs if t in self.graph.producers), None
            )
        return False

    def _by_record(self) -> None:
        """What qdebug.capture kept of the module."""
        facts = self.arrays.facts
        if training := facts.get("training"):
            repeatable = facts.get("repeatable", True)
            often = "" if repeatable else "; two runs on the same samples differed"
            self._add(
                "training-mode",
                f"the module was captured in training mode: {', '.join(training[:3])}{often}",
                "Call module.eval() before qdebug.capture, and before the export.",
                proven=not repeatable or facts.get("keeps_statistics", False),
            )
        parameters = facts.get("parameters")
        if not parameters:
            return
        weights = [
            t for t in self.graph.proto.graph.initializer if t.data_type == onnx.TensorProto.FLOAT
        ]
        names = {t.name for t in weights}
        digests = {weight_digest(values_of(t)) for t in weights}  # one in memory at a time
        other, rounded = [], {}
        for name, kept in parameters.items():
            ways = kept["digests"]
            if any(d in digests for d in ways[""]):
                continue
            half = next((h for h in ("FP16", "BF16") if any(d in digests for d in ways[h])), "")
            if half:
                rounded[name] = half
            elif name in names:
                other.append(name)
        if rounded:
            name, half = next(iter(rounded.items()))
            self._add(
                "half-weights",
                f"{counted(rounded, 'weight')} of the ONNX model are the module's rounded to "
                f"{half}, first '{name}'",
                "Export the weights in FP32: module.float() before the export.",
                proven=True,
            )
        if other:
            self._add(
                "other-weights",
                f"{counted(other, 'weight')} of the ONNX model are not the module's, first "
                f"'{other[0]}'",
                "Export the checkpoint that the framework runs with.",
                proven=True,
            )


def _prepared(array: Array, change: Callable[[Array], Array]) -> Array:
    """Samples of a floating type otherwise; others as they are."""
    return change(array).astype(array.dtype) if array.dtype.kind == "f" else array


def _by_channel(array: Array) -> Array:
    """As [channels, values], float64."""
    return np.moveaxis(array, 1, 0).reshape(array.shape[1], -1).astype(np.float64)


def _affine(own: Array, value: Array) -> tuple[Array, float]:
    """The factor of each channel of the least squares fit of value = factor · own + offset, and the
    energy that it leaves; both are [channels, values]."""
    x, y = (array - array.mean(axis=1, keepdims=True) for array in (own, value))
    energy = np.square(x).sum(axis=1)
    factors = np.divide((x * y).sum(axis=1), energy, out=np.ones_like(energy), where=energy > 0)
    return factors, float(np.square(y - factors[:, None] * x).sum())
