"""Real builds by TensorRT for RTX on whatever machine this is: no GPU is needed."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest

from qdebug.run.tensorrt.build import build_engine
from qdebug.run.tensorrt.engine import BuiltEngine
from qdebug.run.tensorrt.library import Library
from qdebug.run.tensorrt.settings import BuildSettings
from qdebug.types import Progress

Built = Callable[[str, str], BuiltEngine]
Node = Callable[..., onnx.ModelProto]
PLAIN = BuildSettings(compute_capabilities=((8, 9),))
"""For models without dynamic axes."""


def layer_lines(built: BuiltEngine) -> list[str]:
    """What the log says of each layer of the engine."""
    start = built.log.index("[TRT] [V] Layers:")
    section = built.log[start : built.log.index("I/O Tensors", start)]
    return [line for line in section.splitlines() if line.startswith("Name: ")]


@pytest.mark.parametrize("kind", ["fp32", "fp16", "int8", "mixed"])
@pytest.mark.parametrize("net", ["digits_cnn", "digits_encoder"])
def test_bundled_networks_build(built: Built, net: str, kind: str) -> None:
    engine = built(net, kind)
    lines = layer_lines(engine)
    assert engine.size_bytes > 100_000 and not engine.cached and engine.seconds > 0
    assert engine.skipped == ()
    assert any("Datatype: Int8" in line for line in lines) == (kind in ("int8", "mixed"))
    assert any("Datatype: Half" in line for line in lines) == (kind in ("fp16", "mixed"))
    # TF32 is not a type but a way to compute FP32: it shows in the names of kernels.
    assert "tf32" not in "".join(lines).lower()


def test_progress_rises_to_the_end(rtx: Library, one_node: Node) -> None:
    steps: list[Progress] = []
    build_engine(rtx, one_node("Sigmoid"), PLAIN, progress=steps.append)
    shares = [step.done for step in steps]
    assert shares == sorted(set(shares)) and shares[-1] == steps[-1].total == 100
    assert len(shares) > 5 and {step.stage for step in steps} == {"build"}
