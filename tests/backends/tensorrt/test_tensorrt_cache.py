"""Engines are kept by what decides them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from qdebug.backends.engine import BuildWarning, BuiltEngine
from qdebug.backends.tensorrt.build import cache as cache_module
from qdebug.backends.tensorrt.build.build import BuildJob, build_engine, engine_key
from qdebug.backends.tensorrt.build.cache import EngineCache, library_file
from qdebug.backends.tensorrt.build.settings import BuildSettings, ShapeRange
from qdebug.backends.tensorrt.execute.device import Device
from qdebug.backends.tensorrt.library import Library
from qdebug.types import Progress, Skipped

Node = Callable[..., onnx.ModelProto]
PLAIN = BuildSettings(compute_capabilities=((8, 9),))


def an_engine(key: str, size: int = 1000) -> BuiltEngine:
    return BuiltEngine(
        engine=os.urandom(size),
        log="[TRT] [V] Layers:\n[TRT] [W] Größe\n",
        warnings=(BuildWarning("Größe", ("a", "b"), 3),),
        skipped=(Skipped("t", "why"),),
        seconds=1.25,
        key=key,
    )


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    cache, built = EngineCache(tmp_path / "new" / "folder"), an_engine("k")
    assert cache.load("k") is None
    cache.save(built)
    assert cache.load("k") == replace(built, cached=True)
    assert [p.name for p in (tmp_path / "new" / "folder").iterdir()] == ["k.zip"]


def test_a_broken_file_is_as_none(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path)
    cache.save(an_engine("k"))
    path = tmp_path / "k.zip"
    whole = path.read_bytes()
    for broken in (b"", b"garbage", whole[: len(whole) // 2], whole.replace(b"qdebug", b"xdebug")):
        path.write_bytes(broken)
        assert cache.load("k") is None
    flipped = bytearray(whole)
    flipped[500] ^= 1  # within the engine: the checksum tells
    path.write_bytes(flipped)
    assert cache.load("k") is None


def test_another_name_is_no_match(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path)
    cache.save(an_engine("k"))
    (tmp_path / "k.zip").rename(tmp_path / "other.zip")
    assert cache.load("other") is None


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path, limit_bytes=6500)
    for age, key in ((30, "a"), (20, "b"), (10, "c")):
        cache.save(an_engine(key))
        now = (tmp_path / f"{key}.zip").stat().st_mtime
        os.utime(tmp_path / f"{key}.zip", (now - age, now - age))
    assert cache.load("a") is not None  # used: now the newest
    cache.save(an_engine("d", 2000))
    assert {p.stem for p in tmp_path.iterdir()} == {"a", "c", "d"}
    cache.save(an_engine("huge", 9000))
    assert not list(tmp_path.iterdir())


def test_a_disk_that_refuses_is_no_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    cache = EngineCache(blocked)
    cache.save(an_engine("k"))
    assert cache.load("k") is None


def test_a_build_is_taken_from_the_cache(rtx: Library, one_node: Node, tmp_path: Path) -> None:
    cache, steps = EngineCache(tmp_path), list[Progress]()
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
        monkeypatch.setattr(cache_module, "find_device", lambda gpu=gpu: Device(gpu, (8, 9), 1))
        for library in (rtx, replace(rtx, version=(1, 6))):
            path = library_file(tmp_path, "timing", library)
            assert path.parent == tmp_path
            found.add(path)
    assert len(found) == 4
