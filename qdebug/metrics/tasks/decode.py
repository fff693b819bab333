"""What `--decode` names: a decoder of the registry, or a function of the user's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from qdebug.errors import MetricError
from qdebug.metrics.tasks.base import Outputs, called
from qdebug.metrics.tasks.registry import DECODERS, decoder_list
from qdebug.userfile import UserCodeProblem, function_of, load_file
from qdebug.wording import as_known, option

_PROBLEM = UserCodeProblem(MetricError, "QD-METRIC-DECODE", "decode")


def decoder_named(decode: str | None, takes: Literal["boxes", "text"]) -> str | None:
    """The decoder that the user names; None where nothing is said.

    Raises:
        MetricError: there is none of that name.
    """
    names = [decoder.name for decoder in DECODERS if decoder.takes == takes]
    name = None if decode is None else as_known(decode, names)
    if name is None or name in names:
        return name
    raise MetricError(
        f"{option('decode')}: '{decode}' is not known for {takes}",
        f"There are:\n{decoder_list(takes)}\n  or a function, file.py:function.",
        code="QD-METRIC-DECODE",
    )


def users_decoder(decode: str | None) -> Callable[[Outputs], Any] | None:
    """A function of the user's that reads outputs, of `file.py:function`; None of anything else.
    Where it raises, MetricError shows its line.

    Raises:
        MetricError: there is no such file or function.
    """
    source, _, name = (decode or "").rpartition(":")
    if not source.endswith(".py"):
        return None
    file = Path(source)
    function = function_of(load_file(file, _PROBLEM), name, str(decode), _PROBLEM)
    return lambda outputs: called(function, option("decode", str(decode)), (outputs,), file)
