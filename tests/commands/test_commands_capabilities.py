"""What a backend cannot do is refused, or left out, before anything is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import onnx
import pytest

import qdebug
from qdebug.backends import registry
from qdebug.backends.registry import BackendSpec
from qdebug.errors import BackendError, UsageError
from qdebug.testing import FakeBackend
from qdebug.testing.contract import network

SAMPLES = {"x": np.random.default_rng(5).normal(size=(24, 4)).astype(np.float32)}
PLAIN = BackendSpec("plain", "executes, and no more", f"{__name__}:opened")
OPENED: list[FakeBackend] = []


class _Unnamed(FakeBackend):
    """Its label is its name in the registry."""


def opened() -> FakeBackend:
    """The factory of the backend."""
    OPENED.append(_Unnamed())
    return OPENED[-1]


SPEC = PLAIN


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Callable[..., BackendSpec]:
    """Registers a backend that audits and profiles nothing, with changes."""
    OPENED.clear()

    def register(**changes: Any) -> BackendSpec:
        spec = replace(PLAIN, **changes)
        monkeypatch.setitem(globals(), "SPEC", spec)
        point = EntryPoint("plain", f"{__name__}:SPEC", registry.GROUP)
        monkeypatch.setattr(registry, "_added", lambda: {"plain": point})
        return spec

    return register


def model() -> onnx.ModelProto:
    """A network of one product, with float outputs."""
    proto = network()
    del proto.graph.output[1]
    return proto


def runs() -> int:
    return sum(backend.runs for backend in OPENED)


@pytest.mark.parametrize("condition", ["int8_share>=0.5", "mismatch_count<=0"])
def test_a_condition_on_what_is_not_told(plain: Callable[..., BackendSpec], condition: str) -> None:
    plain()
    with pytest.raises(UsageError) as caught:
        qdebug.sweep(model(), inputs=SAMPLES, backend="plain", fail_on=condition)
    assert caught.value.code == "QD-USAGE-BACKEND-CAPABILITY"
    assert condition in caught.value.message and "backend='openvino'" in caught.value.hint
    assert not OPENED


def test_a_condition_on_what_is_told(plain: Callable[..., BackendSpec]) -> None:
    plain()
    conditions = ["size_bytes<=1e9", "latency_ms<=1e9", "output.cosine>=0.9"]
    result = qdebug.sweep(model(), inputs=SAMPLES, backend="plain", fail_on=conditions)
    assert result.passed
    values = result.combinations[0].combination.values
    ours = ("optimization_level", "tactic_sources", "typing", "tf32", "sparsity", "refit")
    assert {values[axis] for axis in ours} == {""}  # it has none of these


def test_engines_that_are_not_serialized_are_not_written(
    plain: Callable[..., BackendSpec], tmp_path: Any
) -> None:
    plain()
    with pytest.raises(UsageError) as caught:
        qdebug.sweep(model(), inputs=SAMPLES, backend="plain", save_engines=tmp_path / "engines")
    assert caught.value.code == "QD-USAGE-BACKEND-SETTING"
    assert not list(tmp_path.iterdir()) and not OPENED


def test_a_search_measures_costs_only_where_layers_are_profiled(
    plain: Callable[..., BackendSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    from qdebug.decide.bisect import steps

    built: list[object] = []
    make = steps.engine_of

    def counted(*given: Any, **options: Any) -> Any:
        built.append(given)
        return make(*given, **options)

    monkeypatch.setattr(steps, "engine_of", counted)
    plain()
    target = {"target": "output.sqnr_db>=60", "cache": False}
    found = qdebug.bisect(model(), inputs=SAMPLES, backend="plain", **target)
    assert found.found and {x.precision for x in found.layers} == {"fp32"}
    assert found.cost.unit != "ms"
    assert len(built) == 1  # the answer's


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        (qdebug.compare, {"precision": "fp16"}),
        (qdebug.sweep, {"precision": ("int8", "fp16")}),
        (qdebug.bisect, {"precision": "fp16", "target": "output.sqnr_db>=60"}),
        (qdebug.bisect, {"pin_to": "fp16", "target": "output.sqnr_db>=60"}),
    ],
)
def test_a_precision_without_kernels(
    plain: Callable[..., BackendSpec], command: Callable[..., Any], asked: dict[str, Any]
) -> None:
    plain()
    with pytest.raises(UsageError) as caught:
        command(model(), inputs=SAMPLES, backend="plain", **asked)
    assert caught.value.code == "QD-USAGE-BACKEND-PRECISION"
    assert runs() == 0


def test_auto_is_what_the_backend_has(plain: Callable[..., BackendSpec]) -> None:
    plain()
    target = {"target": "output.sqnr_db>=60", "cache": False}
    found = qdebug.bisect(model(), inputs=SAMPLES, backend="plain", pin_to="auto", **target)
    assert {x.precision for x in found.layers} == {"fp32"}


def test_a_backend_of_another_package_builds(plain: Callable[..., BackendSpec]) -> None:
    """Or else the simulation would run under its name."""
    plain(builds=False)
    with pytest.raises(BackendError) as caught:
        qdebug.compare(model(), inputs=SAMPLES, backend="plain")
    assert caught.value.code == "QD-BACKEND-PLUGIN"
