"""What stages are given of settings: every field is that of the settings, under the same name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from qdebug.config.compare import CompareSettings
from qdebug.config.search import BisectSettings, RepairSettings
from qdebug.config.specs import PinSearchSpec, QuantizationSpec, TargetSpec
from qdebug.config.sweep import SweepSettings
from qdebug.network.samplespec import SampleSpec

MADE = {"compared", "calibrates_on", "fits_remedies", "engine"}
"""Fields that are made of several settings."""
ONE_FOR_ALL = {"backend", "provider", "max_evaluations", "allow_unquantized"} | {
    *("select_point", "profile", "profile_layers", "block_size")
}
"""Settings that `repair` does not have."""


@pytest.mark.parametrize(
    ("spec", "settings", "lacks"),
    [
        (QuantizationSpec, CompareSettings, set()),
        (QuantizationSpec, BisectSettings, {"reference", "allow_unquantized"}),
        (QuantizationSpec, SweepSettings, {"fallback_precision", "pin", "block_size"}),
        (QuantizationSpec, RepairSettings, ONE_FOR_ALL),
        (TargetSpec, BisectSettings, set()),
        (TargetSpec, RepairSettings, set()),
        (PinSearchSpec, BisectSettings, set()),
        (PinSearchSpec, RepairSettings, ONE_FOR_ALL),
    ],
)
def test_its_fields_are_those_of_the_settings(
    spec: type[Any], settings: type[Any], lacks: set[str]
) -> None:
    names = {f.name for f in fields(spec)} - MADE
    assert names - {f.name for f in fields(settings)} == lacks & names


def test_what_repair_means_by_its_settings_is_not_what_bisect_does() -> None:
    """`pin` allows pins there, `force` replaces files, and the time is that of the whole repair."""
    asked = RepairSettings(
        model="m", calib_data="c", samples=9, pin=True, force=True, time_limit=5.0, pin_to="fp16"
    )
    search = asked.search
    assert (search.pin, search.force, search.time_limit, search.pin_to) == ((), False, None, "fp16")
    assert asked.quantization.compared == SampleSpec("c", 9, None, "calib_data", "samples", "m")


def test_samples_as_settings_name_them() -> None:
    asked = CompareSettings(
        model="m", inputs="i", samples=8, batch_size=2, calib_data="c", calib_samples=3
    )
    spec = asked.quantization
    assert spec.samples == (
        SampleSpec("i", 8, 2, "inputs", "samples", "m"),
        SampleSpec("c", 3, None, "calib_data", "calib_samples", "m"),
    )
    few = RepairSettings(model="m", calib_data="c", inputs="i", samples=9, calib_samples=4)
    assert few.calibrates_on == SampleSpec("c", 4, None, "calib_data", "calib_samples", "m")
    assert few.held_out == SampleSpec("i", 9, None, "inputs", "samples", "m")
