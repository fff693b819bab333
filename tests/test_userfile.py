"""Functions in memory: what their digest covers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from qdebug.userfile import digest_of, name_of

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
