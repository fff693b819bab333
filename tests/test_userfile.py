"""Functions in memory: what their digest covers. Files: where they import from."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdebug.errors import UsageError
from qdebug.userfile import UserCodeProblem, digest_of, load_file, load_module, name_of

LIMIT = 3
TABLE = np.arange(4.0)


def _helper(x: float) -> float:
    return x + LIMIT


def _make(code: str, **variables: Any) -> Callable[..., Any]:
    scope = dict(variables)
    exec(code, scope)
    return scope["f"]


def test_equal_code_has_one_digest() -> None:
    code = "def f(x, k=2):\n    return [x * k for _ in range(3)]"
    assert digest_of(_make(code)) == digest_of(_make(code))
    assert digest_of(lambda x: _helper(x)) == digest_of(lambda x: _helper(x))


def test_code_defaults_and_what_is_outside_count() -> None:
    digests = [
        digest_of(_make("def f(x): return x + 1")),
        digest_of(_make("def f(x): return x + 2")),
        digest_of(_make("def f(x, k=1): return x + k")),
        digest_of(_make("def f(x, k=2): return x + k")),
        digest_of(_make("def f(x, *, k=2): return x + k")),
        digest_of(_make("def f(x): return x + y", y=1)),
        digest_of(_make("def f(x): return x + y", y=2)),
        digest_of(_make("def f(x): return [y for _ in x]", y=1)),
        digest_of(_make("def f(x): return (lambda: y)()", y=1)),
        digest_of(_make("def f(x): return (lambda: y)()", y=2)),
        digest_of(_make("def f(x): return x @ t", t=TABLE)),
        digest_of(_make("def f(x): return x @ t", t=TABLE + 1)),
        digest_of(_make("def f(x): return g(x)", g=_make("def f(x): return 1"))),
        digest_of(_make("def f(x): return g(x)", g=_make("def f(x): return 2"))),
        digest_of(functools.partial(_helper, x=1)),
        digest_of(functools.partial(_helper, x=2)),
        digest_of(np.mean),
        digest_of(np.sum),
        digest_of(len),
    ]
    assert None not in digests
    assert len(set(digests)) == len(digests)


def test_closures_and_recursion() -> None:
    def scaled(by: float) -> Callable[[float], float]:
        return lambda x: x * by

    assert digest_of(scaled(1)) != digest_of(scaled(2))
    assert digest_of(scaled(1)) == digest_of(scaled(1))
    assert digest_of(_make("def f(x): return x and f(x - 1)")) is not None


def test_what_cannot_be_told_has_none() -> None:
    class Model:
        def __call__(self, x: float) -> float:
            return x

    model = Model()
    assert digest_of(model) is None
    assert digest_of(model.__call__) is None
    assert digest_of(lambda x: model(x)) is None
    assert digest_of(_make("def f(x): return m(x)", m=open)) is not None  # a builtin


def test_names() -> None:
    assert name_of(_helper) == "_helper"
    assert name_of(lambda: 0) == "lambda"
    assert name_of(functools.partial(_helper, 1)) == "partial"


PROBLEM = UserCodeProblem(UsageError, "QD-USAGE-METRIC")


@pytest.fixture(autouse=True)
def _forgotten(tmp_path: Path) -> Iterator[None]:
    """Modules that a test had loaded from its folder are not those of other tests."""
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def _beside(folder: Path, **modules: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")


def test_a_users_file_imports_from_its_folder_before_all_else(tmp_path: Path) -> None:
    _beside(
        tmp_path,
        my_metric="import my_early\ndef f():\n    import my_late\n    return my_early.MINE",
        my_early="from modulefinder import MINE",
        my_late="",
        modulefinder="MINE = 'user'",  # of the standard library, too
    )
    module = load_file(tmp_path / "my_metric.py", PROBLEM)
    assert module.f() == "user"
    assert importlib.import_module("my_late").__file__ == str(tmp_path / "my_late.py")


def test_a_module_that_is_named_may_lie_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where Python itself does not look there, as in the installed program."""
    (tmp_path / "own_scores.py").write_text("def score(outputs):\n    return 0.5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    assert load_module("own_scores").score({}) == 0.5
    with pytest.raises(ModuleNotFoundError):
        load_module("no_such_module_anywhere")
