"""Execution providers of packages: a fake one, which is the CPU's by another name."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from qdebug.backends.doctor import examine
from qdebug.backends.host import as_runtime
from qdebug.backends.onnxruntime import OnnxRuntimeBackend
from qdebug.backends.providers import plugin_devices, plugin_modules, provider_of
from qdebug.backends.registry import spec_of
from qdebug.backends.simulation import SimulationBackend
from qdebug.errors import BackendError, UsageError
from qdebug.testing.contract import network
from qdebug.types import TensorSpec

FAKE = "FakeExecutionProvider"
MODULE = "onnxruntime_ep_fake"
_SOURCE = """
def get_library_path():
    return "/nowhere/libfake.so"
def get_ep_names():
    return ["FakeExecutionProvider"]
"""
X = np.ones((2, 4), np.float32)


class FakePlugin:
    """What ONNX Runtime would do with the library of the package.

    Attributes:
        kinds: of the devices that it finds.
        registered, attached: what it was asked for, call by call.
    """

    def __init__(self) -> None:
        self.kinds = ["CPU"]
        self.registered: list[tuple[str, str]] = []
        self.attached: list[tuple[str, dict[str, str]]] = []

    def devices(self) -> list[Any]:
        own = [SimpleNamespace(ep_name=FAKE, device=_device(k)) for k in self.kinds]
        return own if self.registered else []


def _device(kind: str) -> SimpleNamespace:
    return SimpleNamespace(type=SimpleNamespace(name=kind))


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePlugin]:
    (tmp_path / MODULE).mkdir()
    (tmp_path / MODULE / "__init__.py").write_text(_SOURCE)
    (tmp_path / "onnxruntime_other.py").write_text("raise ImportError('not to be imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    fake = FakePlugin()

    class Options(ort.SessionOptions):  # type: ignore[misc]
        def add_provider_for_devices(self, devices: list[Any], options: dict[str, str]) -> None:
            fake.attached.append((devices[0].device.type.name, options))

    def assigned(session: Any) -> list[SimpleNamespace]:
        real = ort.InferenceSession.real_assignment(session)
        return [SimpleNamespace(ep_name=FAKE, get_nodes=part.get_nodes) for part in real]

    monkeypatch.setattr(ort, "SessionOptions", Options)
    monkeypatch.setattr(ort, "get_ep_devices", fake.devices)
    monkeypatch.setattr(
        ort, "register_execution_provider_library", lambda *a: fake.registered.append(a)
    )
    told = "get_provider_graph_assignment_info"
    monkeypatch.setattr(
        ort.InferenceSession, "real_assignment", getattr(ort.InferenceSession, told), raising=False
    )
    monkeypatch.setattr(ort.InferenceSession, told, assigned)
    yield fake
    sys.modules.pop(MODULE, None)


def test_a_package_is_found_by_what_its_module_says(plugin: FakePlugin) -> None:
    assert MODULE in plugin_modules() and "onnxruntime_other" not in plugin_modules()
    assert MODULE not in sys.modules


@pytest.mark.parametrize("name", ["fake", "Fake", FAKE, "fake:cpu"])
def test_its_provider_runs_models(plugin: FakePlugin, name: str) -> None:
    backend = OnnxRuntimeBackend(name, ["level=2"])
    session = backend.open(network(), ["m"])
    assert plugin.registered == [(FAKE, "/nowhere/libfake.so")]
    assert plugin.attached == [("CPU", {"level": "2"})]
    assert backend.device_name == f"{FAKE} (level=2) on CPU"
    assert "onnxruntime-ep-fake" in backend.label
    expected = SimulationBackend().open(network(), ["m"]).run({"x": X})
    np.testing.assert_array_equal(session.run({"x": X})["m"], expected["m"])


def test_its_sessions_run_one_at_a_time(plugin: FakePlugin) -> None:
    """Where one captures a CUDA graph, another's use of the GPU would spoil it."""
    backend = OnnxRuntimeBackend("fake")
    sessions = [backend.open(network(), []) for _ in range(2)]
    running, most = 0, 0

    def run(*_: object) -> list[np.ndarray[Any, Any]]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.01)
        running -= 1
        return [X for _ in sessions[0].dtypes]

    for session in sessions:
        session._session = SimpleNamespace(run=run)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda k: sessions[k % 2].run({"x": X}), range(8)))
    assert most == 1


def test_a_provider_may_take_what_the_cpu_does_not(plugin: FakePlugin) -> None:
    spec, more = spec_of("onnxruntime"), ["fp16", "bf16", "a16w8", "fp8"]
    for asked in (None, "CPU", "CPUExecutionProvider"):
        name = as_runtime(spec, OnnxRuntimeBackend(asked)).provider_name
        for precision in more:
            with pytest.raises(UsageError, match=f"no {precision.upper()} kernels"):
                spec.check_precisions([precision], name)
    spec.check_precisions(more, as_runtime(spec, OnnxRuntimeBackend("fake")).provider_name)


def test_who_executes_which_nodes_is_told(plugin: FakePlugin) -> None:
    runtime = as_runtime(spec_of("onnxruntime"), OnnxRuntimeBackend("fake"))
    (share,) = runtime.build(network()).providers
    assert share.provider == FAKE
    assert "mm" in share.nodes and share.operators["MatMul"] == 1


def test_an_npu_comes_before_a_gpu_and_a_device_can_be_named(plugin: FakePlugin) -> None:
    plugin.kinds = ["CPU", "GPU", "NPU"]
    assert provider_of("fake").device.device.type.name == "NPU"
    assert provider_of("fake:gpu").device.device.type.name == "GPU"


def test_nothing_on_the_provider_is_an_error(
    plugin: FakePlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = ort.InferenceSession.real_assignment
    monkeypatch.setattr(ort.InferenceSession, "get_provider_graph_assignment_info", told)
    with pytest.raises(BackendError, match=r"executes no node.*all 5") as caught:
        OnnxRuntimeBackend("fake").open(network(), [])
    assert caught.value.code == "QD-BACKEND-PROVIDER-FELL-BACK"


def test_axes_that_never_change_are_fixed(plugin: FakePlugin) -> None:
    """QNN's provider takes no others."""
    spec = TensorSpec("x", ("N", 4), np.dtype(np.float32))
    runtime = as_runtime(spec_of("onnxruntime"), OnnxRuntimeBackend("fake"))
    session = runtime.fitted([spec], [{"x": (2, 4)}] * 2).open(network(), [])
    assert session._session.get_inputs()[0].shape == [2, 4]
    loose = runtime.fitted([spec], [{"x": (2, 4)}, {"x": (1, 4)}]).open(network(), [])
    assert loose._session.get_inputs()[0].shape == ["N", 4]


def test_no_device(plugin: FakePlugin) -> None:
    plugin.kinds = []
    with pytest.raises(UsageError, match="finds no device"):
        provider_of("fake")


def test_packages_that_do_not_load_keep_nobody_from_another(
    plugin: FakePlugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "broken"
    (folder / "onnxruntime_ep_aaa").mkdir(parents=True)
    source = "def get_library_path(): ...\nraise OSError('no libaaa.so')"
    (folder / "onnxruntime_ep_aaa" / "__init__.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    assert provider_of("fake").name == FAKE
    with pytest.raises(UsageError, match="no provider 'nobody'") as caught:
        provider_of("nobody")
    assert "onnxruntime-ep-aaa cannot be loaded" in (caught.value.hint or "")
    with pytest.raises(BackendError, match=r"no libaaa\.so"):
        provider_of("aaa")


def test_a_package_may_have_two_providers(plugin: FakePlugin, tmp_path: Path) -> None:
    (tmp_path / MODULE / "__init__.py").write_text(_SOURCE.replace('["Fake', '["Other", "Fake'))
    assert provider_of("fake").name == FAKE


def test_the_refusal_lists_it(plugin: FakePlugin) -> None:
    with pytest.raises(UsageError) as caught:
        provider_of("nobody")
    assert "CPUExecutionProvider" in caught.value.hint and FAKE in caught.value.hint
    assert plugin_devices(MODULE) == ("Fake on CPU",)


def test_a_library_that_does_not_load(plugin: FakePlugin, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: str) -> None:
        raise RuntimeError("built for another version")

    monkeypatch.setattr(ort, "register_execution_provider_library", refuse)
    with pytest.raises(BackendError, match="cannot be loaded: built for another version"):
        provider_of("fake")
    found = next(f for f in examine().findings if f.what == "provider onnxruntime-ep-fake")
    assert found.state == "absent" and "another version" in found.detail


@pytest.mark.parametrize("text", ["htp", "=htp"])
def test_an_option_is_a_pair(text: str) -> None:
    with pytest.raises(UsageError, match=text):
        provider_of(None, [text])


def test_the_cpu_has_no_options() -> None:
    with pytest.raises(UsageError, match="has no options"):
        provider_of(None, ["a=b"])
