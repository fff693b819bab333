"""The options of every session of ONNX Runtime: a silent log, where weights are, and the user's
custom operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qdebug.errors import UsageError
from qdebug.inputfiles import open_file
from qdebug.model.weights import ROOT
from qdebug.operators import libraries, loaded
from qdebug.wording import option

_FATAL = 4


def session_options() -> Any:
    """New options. ONNX Runtime writes its log to the terminal, past Python, with the model's names
    as they are and colours: nothing of it. Its errors come as exceptions too. External data are
    where `model.weights` says.

    Raises:
        UsageError: a library of custom operators cannot be loaded.
    """
    import onnxruntime as ort

    ort.set_default_logger_severity(_FATAL)
    options = ort.SessionOptions()
    options.log_severity_level = _FATAL
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", ROOT)
    for path in libraries():
        try:
            options.register_custom_ops_library(str(path))
        except Exception as error:  # ONNX Runtime's own kinds
            reason = str(error).strip().rpartition(" : ")[2].rpartition(f"{path}: ")[2]
            raise UsageError(
                f"{option('custom_op_library')}: {path} cannot be loaded: {reason}",
                "Give a shared library that exports RegisterCustomOps, built for this machine and "
                f"for ONNX Runtime {ort.__version__} or older.",
                code="QD-USAGE-CUSTOM-OPS",
            ) from error
    return options


@contextmanager
def custom_operators(paths: Sequence[str]) -> Iterator[None]:
    """Within, every session knows the operators of these libraries.

    Raises:
        UsageError: one of them is not there, or cannot be loaded.
    """
    for path in paths:
        try:
            open_file(path).close()
        except OSError as error:
            raise UsageError(
                f"{option('custom_op_library')}: {path}: {error.strerror}",
                "Give the path of a shared library (.so, .dll, .dylib).",
                code="QD-USAGE-CUSTOM-OPS",
            ) from error
    with loaded([Path(path).absolute() for path in paths]):
        if paths:
            session_options()
        yield
