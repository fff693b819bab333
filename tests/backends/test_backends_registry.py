"""The registry of backends."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from qdebug.backends import registry
from qdebug.backends.registry import (
    DEFAULT,
    NOT_INSTALLED,
    BackendSpec,
    backend_names,
    spec_of,
    specs,
)
from qdebug.errors import BackendError, UsageError
from qdebug.types import Precision

BUILT_IN = ("simulation", "onnxruntime", "openvino", "tensorrt-rtx", "tensorrt")
MINE = BackendSpec("mine", "of another package", "math:sqrt")
NOT_A_SPEC = "something else"


def added(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    points = {name: EntryPoint(name, value, registry.GROUP) for name, value in values.items()}
    monkeypatch.setattr(registry, "_added", lambda: points)


def test_the_built_in_backends_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend_names()[: len(BUILT_IN)] == BUILT_IN and DEFAULT == "simulation"
    added(monkeypatch, mine=f"{__name__}:MINE", simulation=f"{__name__}:MINE")
    assert backend_names() == (*BUILT_IN, "mine")
    assert spec_of("simulation").help != MINE.help  # a built-in one cannot be replaced


def test_only_the_simulation_builds_nothing() -> None:
    assert [s.name for s in specs() if not s.builds] == [DEFAULT]


@pytest.mark.parametrize("spec", specs(), ids=lambda spec: spec.name)
def test_each_says_what_there_is_to_know(spec: BackendSpec) -> None:
    assert spec.help and spec.install and spec.modules and spec.distributions
    assert set(spec.precisions) <= {*Precision} and "fp32" in spec.precisions
    assert callable(spec.resolve(spec.factory))
    assert not spec.probe or callable(spec.resolve(spec.probe))


def test_settings_of_the_command_line_belong_to_some_backend() -> None:
    from dataclasses import fields

    from qdebug.config.engine import EngineSettings

    taken = {name for spec in specs() for name in spec.settings}
    assert taken == {f.name for f in fields(EngineSettings)} - {"backend"}


def test_a_setting_that_a_backend_does_not_take() -> None:
    with pytest.raises(UsageError) as caught:
        spec_of("openvino").check_settings(["save_log", "typing"])
    assert caught.value.code == "QD-USAGE-BACKEND-SETTING"
    assert "backend='tensorrt'" in caught.value.hint and "typing" in caught.value.message


def test_an_unknown_name() -> None:
    with pytest.raises(UsageError) as caught:
        spec_of("tensort")
    assert caught.value.code == "QD-USAGE-BACKEND-UNKNOWN"
    assert "Did you mean 'tensorrt'?" in caught.value.hint


def test_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = BackendSpec("mine", "", "math:sqrt", modules=("no_such_module",), install="get it")
    with pytest.raises(UsageError) as caught:
        spec.open()
    assert (caught.value.code, caught.value.hint) == (NOT_INSTALLED, "get it")


def test_a_factory_gets_the_settings_it_takes() -> None:
    seen: dict[str, Any] = {}
    spec = BackendSpec(
        "mine", "", "math:sqrt", settings=frozenset({"provider", "save_log"}), context=("cached",)
    )
    taking = type("Taking", (BackendSpec,), {"resolve": lambda self, path: seen.update})
    given = {"provider": "P", "save_log": "x", "tf32": True}
    taking(**vars(spec)).open(given, cached=True, folder="/")
    assert seen == {"provider": "P", "cached": True}


@pytest.mark.parametrize("value", ["no_such_module:SPEC", "math:pi", f"{__name__}:NOT_A_SPEC"])
def test_an_entry_point_that_is_broken(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    added(monkeypatch, mine=value)
    with pytest.raises(BackendError) as caught:
        spec_of("mine")
    assert caught.value.code == "QD-BACKEND-PLUGIN" and value in caught.value.hint
    assert [s.name for s in specs()] == list(BUILT_IN)  # the others go on


def test_a_factory_that_is_not_there() -> None:
    with pytest.raises(BackendError) as caught:
        BackendSpec("mine", "", "math:no_such_function").open()
    assert caught.value.code == "QD-BACKEND-PLUGIN"
