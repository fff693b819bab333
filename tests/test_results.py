"""Results as JSON, as tables and in notebooks; the schemas say what the JSON is."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar

import jsonschema
import pytest

from qdebug.backends.doctor import DoctorResult, Finding
from qdebug.errors import UsageError
from qdebug.result import (
    Hidden,
    Inline,
    Json,
    MaybeText,
    Result,
    from_json,
    in_json,
    json_schema,
    to_json,
)

SCRIPT = Path(__file__).parents[1] / "scripts" / "make_schemas.py"


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Figures:
    error: float
    count: int


@dataclass(frozen=True)
class Item:
    name: str
    figures: Inline[Figures]
    origin: Annotated[str, Json(key="from")]
    note: MaybeText = ""
    secret: Hidden[object] = None

    @property
    @in_json
    def doubled(self) -> float:
        """Twice the error."""
        return 2 * self.figures.error


@dataclass(frozen=True, repr=False)
class Found(Result):
    """What was found.

    Attributes:
        items: all of them,
            over two lines.
    """

    SCHEMA: ClassVar[str] = "qdebug.found/1"
    ROWS: ClassVar[str] = "items"

    items: tuple[Item, ...]
    by_name: Mapping[str, float]
    colour: Colour | None = None


def found(error: float = 0.5) -> Found:
    item = Item("a", Figures(error, 3), "here", secret=object())
    return Found((item,), {"x": error}, Colour.RED)


def test_declarations_decide_the_json() -> None:
    assert found().to_dict() == {
        "schema": "qdebug.found/1",
        "headline": "qdebug.found/1",
        "items": [
            {"name": "a", "error": 0.5, "count": 3, "from": "here", "note": None, "doubled": 1.0}
        ],
        "by_name": {"x": 0.5},
        "colour": "red",
    }


@pytest.mark.parametrize(
    ("value", "flag"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")]
)
def test_what_is_not_finite_is_null_and_said(value: float, flag: str) -> None:
    data = found(value).to_dict()
    json.dumps(data, allow_nan=False)
    assert data["items"][0]["error"] is None
    assert data["items"][0]["non_finite"] == {"error": flag, "doubled": flag}
    assert data["by_name"] == {"x": None, "non_finite": {"x": flag}}
    assert to_json([value, 1.0]) == [None, 1.0]


@pytest.mark.parametrize("error", [0.5, math.inf, -math.inf])
def test_a_result_is_read_back(error: float) -> None:
    result = found(error)
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    read = Found.from_dict({**data, "more": 1})
    assert read == replace(result, items=(replace(result.items[0], secret=None),))
    assert read.to_dict() == result.to_dict()
    assert math.isnan(Found.from_dict(found(math.nan).to_dict()).items[0].figures.error)
    del data["colour"]  # as an earlier version would have written it
    assert Found.from_dict(data).colour is None


def test_an_axis_is_a_size_or_a_name() -> None:
    assert from_json(tuple[int | str, ...], ["batch", 3]) == ("batch", 3)
    for data in ([1.5], [None], [[3]]):
        with pytest.raises(TypeError):
            from_json(tuple[int | str, ...], data)


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": "qdebug.other/1"},
        {"items": [{"name": "a"}]},
        {"items": 3},
        {"items": [3]},
        {"colour": "blue"},
        {"by_name": []},
        {"by_name": {"x": "much"}},
        {"items": [{"name": 3, "error": 1.0, "count": 3, "from": "here"}]},
    ],
)
def test_what_is_not_the_json_of_a_result(changes: dict[str, object]) -> None:
    with pytest.raises((AttributeError, LookupError, TypeError, ValueError)):
        Found.from_dict({**found().to_dict(), **changes})


@pytest.mark.parametrize("error", [0.5, math.nan])
def test_the_schema_fits_the_json_exactly(error: float) -> None:
    schema = json_schema(Found, closed=True)
    jsonschema.Draft202012Validator.check_schema(schema)
    data = found(error).to_dict()
    jsonschema.validate(data, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**data, "more": 1}, schema)
    jsonschema.validate({**data, "more": 1}, json_schema(Found))  # results may grow
    del data["items"][0]["count"]
    with pytest.raises(jsonschema.ValidationError, match="count"):
        jsonschema.validate(data, json_schema(Found))
    assert schema["properties"]["items"]["description"] == "all of them, over two lines."
    assert schema["$defs"]["Item"]["properties"]["doubled"]["description"] == "Twice the error."


def test_the_published_schemas_are_current() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_table_keeps_what_is_not_finite() -> None:
    pytest.importorskip("pandas")
    frame = found(math.inf).to_pandas()
    assert frame["error"].tolist() == [math.inf] and frame["from"].tolist() == ["here"]


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError) as raised:
        found().to_pandas()
    assert raised.value.code == "QD-USAGE-PANDAS" and "pip install" in raised.value.hint


def test_a_notebook_shows_the_view_escaped() -> None:
    result = DoctorResult((Finding("<b>odd</b>", "missing", "a & b"),))
    html = result._repr_html_()
    assert "&lt;b&gt;odd&lt;/b&gt;" in html and "a &amp; b" in html and "<b>" not in html
    assert repr(result) == "<DoctorResult not ready, without <b>odd</b>>"
