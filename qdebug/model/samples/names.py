"""Which of the user's arrays is which model input."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence

from qdebug.errors import SampleError
from qdebug.model.samples.base import some
from qdebug.types import TensorSpec


def aliases(name: str) -> tuple[str, ...]:
    """The names an array of input `name` may have, best first.

    HDF5 paths have no leading '/', and file names can hold neither '/' nor ':'.
    """
    return name, name.strip("/"), re.sub(r"[/:]", "_", name)


def find_names(found: Collection[str], inputs: Sequence[TensorSpec]) -> dict[str, str]:
    """The found name of every input that has one, by input name."""
    names: dict[str, str] = {}
    for spec in inputs:
        alias = next((name for name in aliases(spec.name) if name in found), None)
        if alias is not None:
            names[spec.name] = alias
    return names


def match_names(found: Collection[str], inputs: Sequence[TensorSpec], where: str) -> dict[str, str]:
    """The found name of every input, by input name.

    One array and one input need no common name.

    Raises:
        SampleError: an input has no array, or two inputs would share one.
    """
    names = find_names(found, inputs)
    if not names and len(found) == 1 and len(inputs) == 1:
        return {inputs[0].name: next(iter(found))}
    for spec in inputs:
        if spec.name not in names:
            raise _missing(spec.name, sorted(set(found) - set(names.values())), found, where)
    _refuse_shared(names, where)
    return names


def _missing(name: str, free: list[str], found: Collection[str], where: str) -> SampleError:
    near = difflib.get_close_matches(name, free, n=1, cutoff=0.5)
    hint = f"Rename '{near[0]}' to '{name}'." if near else f"Name one of the arrays '{name}'."
    held = some(sorted(found))
    return SampleError(f"{where}: no array for model input '{name}'; found {held}.", hint)


def _refuse_shared(names: dict[str, str], where: str) -> None:
    owner: dict[str, str] = {}
    for name, alias in names.items():
        if alias in owner:
            raise SampleError(
                f"{where}: array '{alias}' could be model input '{owner[alias]}' or '{name}'.",
                "Save both in an .npz, under the inputs' exact names.",
            )
        owner[alias] = name
