"""`qdebug diff`: where two runs of one model, on two machines or backends, diverge."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qdebug.backends.registry import DEFAULT
from qdebug.commands.report.sources import described_in
from qdebug.config.report import DiffSettings
from qdebug.errors import StoreError, UsageError
from qdebug.metrics.sums import ErrorSums, measure
from qdebug.metrics.tensor import GATED, Metrics, metrics_of
from qdebug.plan.description import Description
from qdebug.plan.plan import PrecisionPlan
from qdebug.results.conditions import Condition, check_condition, parse_condition
from qdebug.results.diff import DifferingRun, DiffResult, RoleDifference, TensorDifference
from qdebug.results.recorded import Run
from qdebug.store.reader import RunReader
from qdebug.store.schema import ROLES, Role
from qdebug.wording import option

_ROUNDING_DB = 90.0
"""FP32 sums in another order agree to more: 130 dB and above where each of 100 terms is rounded to
24 bits. Arithmetic in fewer bits does not: the 11 bits of TF32 and FP16 give about 70 dB."""
_BELOW_QUANTIZATION_DB = 20.0
"""Rounding in FP32 moves few values to the next code, so that two runs of one arithmetic differ by
far less than quantization costs. INT8 kernels that round otherwise do not: a small network for
digits on ONNX Runtime and on OpenVINO differs by 8 to 17 dB less than that, from its first
depthwise convolution on, and by 45 dB less before."""
_SCOPES = {scope: GATED[scope] for scope in ("output", "tensor")}


def diff(settings: DiffSettings) -> DiffResult:
    """Compare the activations that two run files keep.

    Raises:
        UsageError: they are of two models, or of other samples.
        StoreError: one cannot be read, or they keep no activations in common.
        MetricError: a condition that is not known.
    """
    conditions = [parse_condition(text, _SCOPES) for text in settings.fail_on]
    with (
        Run(settings.run) as run,
        Run(settings.other) as other,
        RunReader(settings.run) as first,
        RunReader(settings.other) as second,
    ):
        _check_alike(run, other)
        samples = tuple(s for s in first.samples if s in second.samples)
        described = described_in(first)
        layer_of = {layer.tensor: layer.name for layer in run.result.layers}
        outputs = [output.name for output in run.result.outputs]
        order = list(run.tensors)
        roles = tuple(
            difference
            for roles in _pairs_of_roles(run, other)
            if (difference := _role(*roles, first, second, order, layer_of, outputs, described))
        )
        if not roles:
            raise StoreError(
                f"{settings.run} and {settings.other} keep no activations of the same samples",
                f"Compare again with `{option('keep', 'all')}`, on the same samples.",
                code="QD-STORE-NOT-KEPT",
            )
        same_plan = _without_origin(run.plan) == _without_origin(other.plan)
        dtypes = {first.dtype, second.dtype}
        runs = _ran(settings.run, run), _ran(settings.other, other)
    return DiffResult(
        model=run.result.model,
        runs=runs,
        samples=samples,
        same_plan=same_plan,
        roles=roles,
        conditions=tuple(check_condition(c, list(_values(c, roles))) for c in conditions),
        notes=tuple(_notes(runs, same_plan, dtypes)),
    )


def _check_alike(run: Run, other: Run) -> None:
    """Refuse runs whose tensors do not mean the same.

    Raises:
        UsageError: they are of two models, or of other samples.
    """
    for what, key, path in (("models", "digest", "model"), ("samples", "digest", "samples")):
        one, two = (_of(r.manifest, path) for r in (run, other))
        if one.get(key) != two.get(key):
            raise UsageError(
                f"{run.path} and {other.path} are of different {what}: {one.get('path')} and "
                f"{two.get('path')} differ in content",
                "Give two runs of one model on the same samples; `qdebug report` shows any runs "
                "beside each other.",
                code="QD-USAGE-RUNS-DIFFER",
            )


def _of(manifest: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    entry = manifest.get(name)
    return entry if isinstance(entry, Mapping) else {}


def _without_origin(plan: PrecisionPlan | None) -> PrecisionPlan | None:
    """A plan as it is executed: without the paths it came from."""
    return plan and replace(plan, model_sha256="", calibration="")


def _pairs_of_roles(run: Run, other: Run) -> list[tuple[Role, Role]]:
    """What is compared of the two: each role with itself, and an engine's tensors with the
    simulation where the other run built none."""
    pairs = [(role, role) for role in ROLES]
    if (run.result.backend == DEFAULT) != (other.result.backend == DEFAULT):
        is_second = run.result.backend == DEFAULT
        pairs[-1] = ("candidate", "engine") if is_second else ("engine", "candidate")
    return pairs


def _role(
    role: Role,
    second_role: Role,
    first: RunReader,
    second: RunReader,
    order: Sequence[str],
    layer_of: Mapping[str, str],
    outputs: Sequence[str],
    described: Description | None,
) -> RoleDifference | None:
    """The tensors that both keep of their role, in `order`; None where there are none."""
    kept = {*first.tensors(role)} & {*second.tensors(second_role)}
    tensors = []
    for name in order:
        sums = _sums(first, role, second, second_role, name) if name in kept else None
        if sums is None:
            continue
        own = None if role == "reference" else _sums(first, "reference", first, role, name)
        metrics = metrics_of(sums)
        quantized = None if own is None else metrics_of(own).sqnr_db
        diverges = _diverges(metrics, quantized)
        tensors.append(TensorDifference(name, layer_of.get(name), metrics, quantized, diverges))
    if not tensors:
        return None
    shown = tuple(n for n in outputs if n in kept)
    difference = RoleDifference(role, second_role, tuple(tensors), shown, None)
    return replace(difference, inputs_sqnr_db=_inputs_db(difference, described))


def _sums(
    one: RunReader, role: Role, other: RunReader, other_role: Role, tensor: str
) -> ErrorSums | None:
    """Of `other` against `one`, over the samples that both keep the tensor of, where the shapes are
    the same; None without such samples, and for what holds no floats."""
    total = None
    for sample in one.samples_of(role, tensor):
        if sample not in other.samples_of(other_role, tensor):
            continue
        a, b = one.read(role, tensor, sample), other.read(other_role, tensor, sample)
        if a.dtype.kind != "f" or b.dtype.kind != "f" or a.shape != b.shape:
            return None
        sums = measure(a, b, first_sample=sample)
        total = total.merge(sums) if total else sums
    return total


def _diverges(metrics: Metrics, quantized_db: float | None) -> bool:
    """Whether a difference is more than rounding explains."""
    bound = _ROUNDING_DB
    if quantized_db is not None and math.isfinite(quantized_db):
        bound = min(bound, quantized_db + _BELOW_QUANTIZATION_DB)
    return math.isnan(metrics.sqnr_db) or metrics.sqnr_db < bound


def _inputs_db(difference: RoleDifference, described: Description | None) -> float | None:
    """The lowest SQNR among what the first tensor to diverge is computed from: through tensors that
    were not kept, such as those within a layer."""
    first = difference.first_to_diverge
    if first is None or described is None:
        return None
    of = {t.tensor: t.metrics.sqnr_db for t in difference.tensors}
    made_by = {name: node.inputs for node in described.nodes for name in node.outputs}
    seen: set[str] = set()
    todo = list(made_by.get(first.tensor, ()))
    values = []
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in of:
            values.append(of[name])
        else:
            todo += made_by.get(name, ())
    return min(values, default=None)


def _ran(path: str, run: Run) -> DifferingRun:
    device = _of(run.manifest, "device")
    versions = {str(k): str(v) for k, v in _of(run.manifest, "versions").items()}
    engine = run.result.engine
    return DifferingRun(
        path=path,
        backend=run.result.backend,
        library=engine.library if engine else f"ONNX Runtime {versions.get('onnxruntime', '?')}",
        provider=str(_of(run.manifest, "settings").get("provider") or ""),
        machine=" ".join(str(device[k]) for k in ("machine", "system") if device.get(k)),
        versions=versions,
    )


def _values(condition: Condition, roles: Sequence[RoleDifference]) -> Iterator[float | None]:
    """What a condition is about, in FP32, the simulation and the engine alike."""
    for role in roles:
        for tensor in role.tensors:
            if condition.scope == "tensor" or tensor.tensor in role.outputs:
                yield getattr(tensor.metrics, condition.name)


def _notes(runs: Sequence[DifferingRun], same_plan: bool, dtypes: set[str]) -> Iterator[str]:
    if len(with_engine := [r for r in runs if r.backend != DEFAULT]) == 1:
        path = with_engine[0].path
        yield (
            f"Only {path} holds an engine's tensors: they are compared with the other's simulation."
        )
    if not same_plan:
        yield "The two runs had other plans: what differs is not only how they were executed."
    if "float16" in dtypes:
        yield (
            "A run keeps its activations in FP16, so that differences of the last bits are not "
            f"seen. {option('keep', 'worst:2')} keeps them whole."
        )
