"""What a command asks of every session of ONNX Runtime that it opens, and the options that follow:
a silent log, where weights are, and the user's custom operators."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from qdebug.errors import UsageError
from qdebug.inputfiles import open_file
from qdebug.network.weights import ROOT
from qdebug.wording import option

_FATAL = 4


@dataclass(frozen=True)
class SessionSettings:
    """What a command asks of every session that it opens.

    Attributes:
        operators: libraries of custom operators, each once.
    """

    operators: tuple[Path, ...] = ()

    @classmethod
    def of(cls, operators: Sequence[str]) -> Self:
        """As a user asks for it: the paths of libraries."""
        paths = dict.fromkeys(Path(path).absolute() for path in operators)
        return cls(tuple(paths))

    @property
    def operators_digest(self) -> str:
        """SHA-256 of the libraries; "" without any. A part of the keys of what is kept."""
        if not self.operators:
            return ""
        parts = [hashlib.sha256(path.read_bytes()).hexdigest() for path in self.operators]
        return hashlib.sha256("".join(parts).encode()).hexdigest()

    def check(self) -> None:
        """Refuse libraries that are not there, or cannot be loaded.

        Raises:
            UsageError: names the first of them.
        """
        for path in self.operators:
            try:
                open_file(path).close()
            except OSError as error:
                raise UsageError(
                    f"{option('custom_op_library')}: {path}: {error.strerror}",
                    "Give the path of a shared library (.so, .dll, .dylib).",
                    code="QD-USAGE-CUSTOM-OPS",
                ) from error
        if self.operators:
            session_options(self.operators)


DEFAULT_SESSIONS = SessionSettings()


def session_options(operators: Sequence[Path]) -> Any:
    """New options. ONNX Runtime writes its log to the terminal, past Python, with the model's names
    as they are and colours: nothing of it. Its errors come as exceptions too. External data are
    where `model.weights` says.

    Args:
        operators: libraries of custom operators.

    Raises:
        UsageError: one of the libraries cannot be loaded.
    """
    import onnxruntime as ort

    ort.set_default_logger_severity(_FATAL)
    options = ort.SessionOptions()
    options.log_severity_level = _FATAL
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", ROOT)
    for path in operators:
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
