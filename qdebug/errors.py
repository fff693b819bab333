"""The one tree of errors. Each carries the exit code the command line ends with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Self

from qdebug.wording import option, printable

_ENDLESS, _SHOWN = re.compile(r"\S{1000,}"), 200
_LONGEST, _START, _END = 3000, 2000, 500


class QdebugError(Exception):
    """Base of every error qdebug raises on purpose.

    Args:
        message: what is wrong, naming the file, layer, tensor or setting (see `wording.option`).
        hint: the next step for the user; shown after the message.
        code: what went wrong, as a stable name such as QD-MODEL-TRUNCATED; docs/reference/errors.md
            lists all of them with cause and cure. None takes the general code of the class.
    """

    exit_code = 2
    family = "QD-ERROR"

    def __init__(self, message: str, hint: str = "", *, code: str | None = None) -> None:
        self.message = _readable(printable(message))
        self.hint = _readable(printable(hint, kept="\n"))
        super().__init__(self.message)
        self.code = code or self.family
        self.setting = ""

    def __str__(self) -> str:
        text = f"{self.message}\n  {self.hint}" if self.hint else self.message
        return f"{text} [{self.code}]"

    def reworded(self, message: str, hint: str | None = None) -> Self:
        """The same error, of the same class and code, in other words."""
        return type(self)(message, self.hint if hint is None else hint, code=self.code)


def _readable(text: str) -> str:
    """`text`, in which words are cut that no name is as long as: something else was given."""
    short = _ENDLESS.sub(lambda found: f"{found[0][:_SHOWN]}…", text)
    return short if len(short) <= _LONGEST else f"{short[:_START]} … {short[-_END:]}"


class UsageError(QdebugError):
    """A flag, or a combination of flags, that makes no sense."""

    family = "QD-USAGE"


class ModelError(QdebugError):
    """The model file cannot be read, or holds what qdebug cannot handle."""

    family = "QD-MODEL"


class SampleError(QdebugError):
    """The input data cannot be read, or does not fit the model."""

    family = "QD-SAMPLES"


class PlanError(QdebugError):
    """A precision plan that is not valid, or does not fit the model."""

    family = "QD-PLAN"


class StoreError(QdebugError):
    """A run file cannot be written or read."""

    family = "QD-STORE"


class MetricError(QdebugError):
    """A metric or a condition that is unknown, raises, or yields no number."""

    family = "QD-METRIC"


class BackendError(QdebugError):
    """A runtime failed to build or to execute a model."""

    family = "QD-BACKEND"
    exit_code = 3


class ClusterError(QdebugError):
    """The processes or machines that work was to be spread over."""

    family = "QD-CLUSTER"
    exit_code = 3


class ClusterStartError(ClusterError):
    """No worker could be started, or reached: what was asked for is not to be had."""

    exit_code = 2


def out_of_memory(what: str) -> BackendError:
    """The error of a machine whose memory does not suffice; `what` is said of it."""
    return BackendError(
        f"there is not enough memory{f' ({what})' if what else ''}",
        "Take fewer samples, smaller batches or a smaller memory budget; see `ulimit -v`, too.",
        code="QD-BACKEND-HOST-MEMORY",
    )


_NO_MEMORY = re.compile(
    r"std::bad_alloc|[Ff]ailed to allocate memory|[Cc]annot allocate memory|"
    r"can't start new thread|failed to map segment(?!.*not permitted)"
)


def is_about_memory(error: BaseException) -> bool:
    """Whether a foreign error says that memory does not suffice: ONNX Runtime's, Python's, or that
    of the system where a library is loaded."""
    message = re.sub(r"Name:'[^']*'", "", str(error))  # of a node, which may be called anything
    return isinstance(error, MemoryError) or _NO_MEMORY.search(message) is not None


_PACKAGES = {"PIL.Image": "pillow", "cv2": "opencv-python-headless"}
"""Of modules that are called otherwise than their package."""


def required(
    module: str, user: str, *, code: str, error: type[QdebugError] = UsageError
) -> ModuleType:
    """A module of a package that not every installation has.

    Args:
        user: what needs it, for the message.

    Raises:
        QdebugError: of the class `error`, where it is not installed.
        ImportError: the memory does not suffice for it.
    """
    try:
        return import_module(module)
    except ImportError as missing:
        if is_about_memory(missing):
            raise
        package = _PACKAGES.get(module) or module.partition(".")[0].replace("_", "-")
        raise error(
            f"{user} needs {package}, which is not installed ({missing})",
            f"Run: pip install {package}",
            code=code,
        ) from missing


@contextmanager
def about_model(path: str | None) -> Iterator[None]:
    """Errors within of a model, and of a runtime that executes it, name its file."""
    try:
        yield
    except (ModelError, BackendError, PlanError) as error:
        name = printable(path or "")
        is_plan = isinstance(error, PlanError) and error.code != "QD-PLAN-INVALID-MODEL"
        if not name or is_plan or name in error.message:
            raise
        named = error.reworded(f"{name}: {error.message}")
        named.setting = error.setting
        raise named from error


@contextmanager
def given_by(setting: str) -> Iterator[None]:
    """Errors within, of reading what the user gave as `setting`, name that setting first."""
    try:
        yield
    except QdebugError as error:
        names_one = error.message.startswith(("--", option(setting)))
        if error.setting or names_one:
            raise
        named = error.reworded(f"{option(setting)}: {error.message}")
        named.setting = setting
        raise named from error
