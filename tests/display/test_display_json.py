"""What is not a number in JSON."""

from __future__ import annotations

import json
import math
from typing import Any


def test_non_finite_values_are_null_with_a_flag(kit: Any) -> None:
    found = kit.result(
        [kit.layer("hot", local=math.nan, metrics=kit.broken), kit.layer("ok", local=math.inf)],
        conditions=(kit.Checked("layer.sqnr_db>=1", -math.inf, False),),
        first_divergence=kit.Divergence("h", None, math.nan, 20.0),
    )
    data = found.to_dict()
    text = json.dumps(data, allow_nan=False)  # raises where a NaN is left
    assert json.loads(text) == data
    hot, fine = data["layers"]
    broken = ("max_abs_err", "mean_abs_err", "rmse", "sqnr_db", "cosine", "local_sqnr_db")
    broken += ("worst_sample_sqnr_db", "worst_part_sqnr_db")
    assert hot["non_finite"] == dict.fromkeys(broken, "nan")
    assert all(hot[key] is None for key in broken) and hot["inf_count"] == 7
    assert fine["non_finite"] == {"local_sqnr_db": "inf"} and fine["sqnr_db"] == 31.25
    assert data["verdict"]["conditions"][0]["non_finite"] == {"value": "-inf"}
    assert data["first_divergence"]["non_finite"] == {"sqnr_db": "nan"}
    assert "non_finite" not in data["outputs"][0]


def test_names_are_exact(kit: Any) -> None:
    name = 'слой \x1b[31m "quoted" \\ [red] 层'
    data = json.loads(json.dumps(kit.result([kit.layer(name)]).to_dict()))
    assert data["layers"][0]["name"] == name
