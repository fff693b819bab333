"""For tests, also of packages that add a backend: fakes that need no runtime, and the contract that
every backend keeps.

    from qdebug.testing import BackendContract

    class TestMine(BackendContract):
        backend_name = "mine"

`FakeBackend` answers with ONNX's reference evaluator, or with the results of a function. The fakes
of TensorRT are in `qdebug.testing.tensorrt` and `qdebug.testing.cuda`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qdebug.testing.backend import FakeBackend
    from qdebug.testing.contract import BackendContract

__all__ = ["BackendContract", "FakeBackend"]


def __getattr__(name: str) -> Any:
    """The contract needs pytest, and is imported on use."""
    if name == "BackendContract":
        from qdebug.testing.contract import BackendContract

        return BackendContract
    if name == "FakeBackend":
        from qdebug.testing.backend import FakeBackend

        return FakeBackend
    raise AttributeError(name)
