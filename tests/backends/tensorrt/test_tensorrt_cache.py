"""Engines are kept by what decides them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from qdebug.backends.tensorrt import backend
from qdebug.backends.tensorrt.backend import library_file
from qdebug.backends.tensorrt.build.build import BuildJob, build_engine, engine_key
from qdebug.backends.tensorrt.build.settings import BuildSettings, ShapeRange
from qdebug.backends.tensorrt.execute.device import Device
from qdebug.backends.tensorrt.library import Library
from qdebug.memo import Memo
from qdebug.types import Progress

Node = Callable[..., onnx.ModelProto]
PLAIN = BuildSettings(compute_capabilities=((8, 9),))


def test_a_build_is_taken_from_the_cache(rtx: Library, one_node: Node, tmp_path: Path) -> None:
    cache, steps = Memo(tmp_path), list[Progress]()
    first = build_engine(rtx, one_node("Sigmoid"), PLAIN, outputs=["gone"], cache=cache)
    again = build_engine(
        rtx, one_node("Sigmoid"), PLAIN, outputs=["gone"], cache=cache, progress=steps.append
    )
    assert not first.cached and not steps
    assert again == replace(first, cached=True)
    assert [s.tensor for s in again.skipped] == ["gone"]
    build_engine(rtx, one_node("Sigmoid"), PLAIN)
    assert len(list(tmp_path.iterdir())) == 1


def test_the_key_follows_all_that_decides_the_engine(rtx: Library, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.so"
    plugin.write_bytes(b"one")
    other = onnx.ModelProto(producer_name="another")
    job = BuildJob(onnx.ModelProto(), replace(PLAIN, plugins=(plugin,)))
    settings = job.settings
    variants = [
        job,
        replace(job, outputs=["a"]),
        replace(job, debug=["a"]),
        replace(job, settings=replace(settings, compute_capabilities=((8, 6),))),
        replace(job, settings=replace(settings, compute_capabilities=())),
        replace(job, settings=replace(settings, tf32=True)),
        replace(job, settings=replace(settings, sparsity=True)),
        replace(job, settings=replace(settings, workspace_bytes=2**20)),
        replace(job, settings=replace(settings, optimization_level=1)),
        replace(job, settings=replace(settings, tactic_sources=())),
        replace(job, settings=replace(settings, refit=True)),
        replace(job, settings=replace(settings, version_compatible=True)),
        replace(job, settings=replace(settings, unfused_debug_tensors=True)),
        replace(job, settings=replace(settings, profile={"x": ShapeRange((1,), (2,), (3,))})),
        replace(job, settings=replace(settings, plugins=())),
    ]
    keys = [engine_key(rtx, variant) for variant in variants]
    keys.append(engine_key(rtx, replace(job, proto=other)))
    keys.append(engine_key(replace(rtx, version=(1, 6, 1)), job))
    plugin.write_bytes(b"two")
    keys.append(engine_key(rtx, job))
    assert len(set(keys)) == len(keys)
    same = replace(job, settings=replace(settings, timing_cache=tmp_path / "timing"))
    assert engine_key(rtx, same) == keys[-1]
    order = (replace(job, outputs=["a", "b"]), replace(job, outputs=["b", "a", "a"]))
    assert len({engine_key(rtx, x) for x in order}) == 1


def test_a_timing_cache_for_each_library_and_gpu(
    rtx: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for gpu in ("NVIDIA H200", "NVIDIA L4 / x"):
        monkeypatch.setattr(backend, "find_device", lambda gpu=gpu: Device(gpu, (8, 9), 1))
        for library in (rtx, replace(rtx, version=(1, 6))):
            path = library_file(tmp_path, "timing", library)
            assert path.parent == tmp_path
            found.add(path)
    assert len(found) == 4
