"""`qdebug.capture` of PyTorch modules, and what it tells of their exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import qdebug
from qdebug.errors import SampleError, StoreError, UsageError
from qdebug.results.framework import FrameworkResult
from qdebug.store.capture_file import DIGESTS, FACTS, digests_of

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nets = pytest.importorskip("torch_networks")

KINDS = ("cnn", "unet", "transformer", "mlp")
FAULTS = ("training-mode", "epsilon", "frozen", "other-weights", "half-weights")


def checked(folder: Path, kind: str, fault: str) -> FrameworkResult:
    module, proto = nets.planted(kind, fault)
    data = nets.samples(kind)
    # A branch by the mean of a batch is one by sample where each is a batch.
    file = qdebug.capture(module, data, folder / "run.h5", batch_size=1 if fault == "frozen" else 8)
    found = qdebug.compare(
        proto, inputs=data, framework=file, effect="none", cache=False, allow_unquantized=True
    ).framework
    assert found is not None
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_right_export(kind: str, tmp_path: Path) -> None:
    found = checked(tmp_path, kind, "")
    assert found.agrees and all(m.agrees for m in found.modules)
    assert found.modules and found.worst.sqnr_db > 110


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_is_seen(kind: str, fault: str, tmp_path: Path) -> None:
    found = checked(tmp_path, kind, fault)
    assert found.agrees is False and found.first_differing


def test_where_it_begins(tmp_path: Path) -> None:
    found = checked(tmp_path, "unet", "interpolation")
    assert (found.last_agreeing, found.first_differing) == ("/down/Conv_output_0", "y")


def test_the_file(tmp_path: Path) -> None:
    """Outputs and modules as PyTorch gives them; the module is left as it was."""
    module, data = nets.network("cnn").train(), nets.samples("cnn", 5)
    before = module.stem[1].running_mean.clone()
    path = qdebug.capture(module, data, tmp_path / "run.h5", batch_size=5, modules=["stem", "fc"])
    assert module.training and torch.equal(before, module.stem[1].running_mean)
    module.eval()
    path = qdebug.capture(module, data, path, batch_size=2, modules=["stem", "fc"], force=True)
    with h5py.File(path) as file, torch.no_grad():
        x = torch.from_numpy(data["x"])
        assert set(file) == {"output_0", "stem", "fc", DIGESTS, FACTS}
        assert np.allclose(file["output_0"], module(x), atol=1e-6)
        assert np.allclose(file["stem"], module.stem(x), atol=1e-6)
        assert np.array_equal(file[DIGESTS], digests_of(data, 5))
    with pytest.raises(StoreError) as caught:
        qdebug.capture(module, data, path)
    assert caught.value.code == "QD-STORE-OUTPUT-EXISTS"


@pytest.mark.parametrize("form", ["tuples", "tensors", "dicts"])
def test_samples_in_batches(form: str, tmp_path: Path) -> None:
    module, data = nets.network("mlp"), nets.samples("mlp", 6)["x"]
    parts = [data[:4], data[4:]]
    batches: Any = {
        "tuples": [(part,) for part in parts],
        "tensors": [torch.from_numpy(part) for part in parts],
        "dicts": [{"x": part} for part in parts],
    }[form]
    path = qdebug.capture(module, batches, tmp_path / "run.h5")
    with h5py.File(path) as file:
        assert file["b"].shape == (6, 6) and file[DIGESTS].shape == (6, 32)


class _Branching(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Modules of which one runs on the first batch only, one on the second only, and one gives two
    rows for each sample."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("every", "first", "second", "windows"):
            self.add_module(name, torch.nn.Linear(4, 4))

    def forward(self, x: Any) -> Any:
        y = self.every(x)
        self.windows(torch.cat([x, x]))
        return self.first(y) if x[0, 0] > 0 else self.second(y)


def test_a_module_that_does_not_run_on_every_batch(tmp_path: Path) -> None:
    data = np.ones((8, 4), np.float32)
    data[4:] = -1
    module = _Branching().eval()
    path = qdebug.capture(module, {"x": data}, tmp_path / "run.h5", batch_size=4)
    with h5py.File(path) as file:
        assert set(file) == {"output_0", "every", DIGESTS, FACTS}
        left_out = json.loads(file[FACTS][()].tobytes())["left_out"]
    assert set(left_out) == {"first", "second", "windows"}
    assert left_out["first"] == "it did not run for all samples"
    assert left_out["windows"] == "of shape [8, 4] for 4 samples"
    module.forward = lambda x: module.windows(torch.cat([x, x]))
    with pytest.raises(SampleError, match=r"output 'output_0' has shape \[16, 4\]"):
        qdebug.capture(module, {"x": data}, path, force=True)


def test_other_samples_and_another_order(tmp_path: Path) -> None:
    module, data = nets.network("mlp"), nets.samples("mlp")
    proto = nets.exported(module, "mlp")
    path = qdebug.capture(module, data, tmp_path / "run.h5")
    for x, words in (
        (data["x"][::-1], "sample 0 of inputs is sample 7"),
        (2 * data["x"], "not among"),
    ):
        with pytest.raises(SampleError, match=words):
            qdebug.compare(
                proto, inputs={"x": np.ascontiguousarray(x)}, framework=path, cache=False
            )


def test_what_is_no_module(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    for module, how in ((lambda x: x, {}), (nets.network("mlp"), {"modules": ["nowhere"]})):
        with pytest.raises(UsageError) as caught:
            qdebug.capture(module, nets.samples("mlp"), path, **how)
        assert caught.value.code == "QD-USAGE-CAPTURE"
    with pytest.raises(SampleError):
        qdebug.capture(nets.network("mlp"), [], path)
    assert not path.exists()
