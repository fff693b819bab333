"""Objects that stand in for those of a TensorRT that cannot be run here.

Their interface is read off NVIDIA's own Python classes: an attribute that the real class lacks, a
property that cannot be set, an argument that its signature does not take or of a type that it does
not take is an error, at the place where our code, or Polygraphy for us, uses it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any


class Recorder:
    """What was called and set, in order, as (object, member, arguments)."""

    def __init__(self, trt: Any) -> None:
        self.trt = SimpleNamespace(**vars(trt))  # as it was before anything is replaced in it
        self.calls: list[tuple[str, str, tuple[Any, ...]]] = []
        self.parsed: Any = None  # the last model, its network, and the calls that were before it
        self.network: Any = None
        self.parsed_at = 0

    def of(self, member: str) -> list[tuple[Any, ...]]:
        """Arguments of every call or setting of `member`."""
        return [arguments for _, name, arguments in self.calls if name == member]

    def fake(self, cls: str, label: str = "", **members: Any) -> Fake:
        """An object of the real class `cls`.

        Args:
            cls: its name in the TensorRT module.
            label: what the recorder calls it.
            members: values of properties, and what methods do.
        """
        return Fake(getattr(self.trt, cls), self, label or cls, members)


class Fake:
    """See Recorder.fake."""

    def __init__(
        self, real: type, recorder: Recorder, label: str, members: Mapping[str, Any]
    ) -> None:
        vars(self).update(_real=real, _recorder=recorder, _label=label, _members=dict(members))
        for name in members:
            getattr(real, name)  # what is faked must exist

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._real, name)
        if isinstance(member, property):
            assert name in self._members, f"the fake {self._label} has no value for {name}"
            return self._members[name]
        return self._method(name, member)

    def __setattr__(self, name: str, value: Any) -> None:
        member = getattr(self._real, name)
        assert isinstance(member, property) and member.fset, f"{self._label}.{name} cannot be set"
        self._recorder.calls.append((self._label, name, (value,)))
        self._members[name] = value

    def _method(self, name: str, member: Any) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            check_call(self._recorder.trt, member, args, options)
            self._recorder.calls.append((self._label, name, (*args, *options.values())))
            answer = self._members.get(name)
            return answer(*args, **options) if callable(answer) else answer

        return call

    def __iter__(self) -> Iterator[Any]:
        return iter([self.__getattr__("get_layer")(i) for i in range(self._members["num_layers"])])

    def __bool__(self) -> bool:
        return True


class Memory(bytes):
    """A `trt.IHostMemory`: a buffer that is a context manager."""

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None: ...


def check_call(trt: Any, method: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Bind arguments to a pybind11 method as its docstring declares it.

    Raises:
        TypeError: no declared form takes them.
    """
    forms = signatures(method)
    if not any(_takes(trt, parameters, args, options) for parameters in forms):
        raise TypeError(f"{method.__qualname__} takes {forms}, got {args} {options}")


def signatures(method: Any) -> list[list[tuple[str, str, bool]]]:
    """The forms of a method: for each parameter but self, name, type and whether it is needed."""
    pattern = rf"^(?:\d+\. )?{re.escape(method.__name__)}\((.*)\) -> "
    found = re.findall(pattern, method.__doc__ or "", re.MULTILINE)
    assert found, f"{method.__qualname__} declares no signature"
    return [[_parameter(p) for p in _split(text)][1:] for text in found]


def _split(text: str) -> list[str]:
    """At the commas that stand outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += {"[": 1, "(": 1, "]": -1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _parameter(text: str) -> tuple[str, str, bool]:
    head, equals, _ = text.partition(" = ")
    name, _, kind = head.partition(": ")
    return name, kind, not equals


def _takes(
    trt: Any,
    parameters: list[tuple[str, str, bool]],
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> bool:
    names = [name for name, _, _ in parameters]
    if len(args) > len(parameters) or not set(options) <= set(names[len(args) :]):
        return False
    given = dict(zip(names, args, strict=False)) | options
    return all(
        _fits(trt, given[name], kind) if name in given else not needed
        for name, kind, needed in parameters
    )


def _fits(trt: Any, value: Any, kind: str) -> bool:
    name = re.split(r"[.:]+", kind)[-1]
    plain: dict[str, Any] = {"str": str, "bool": bool, "Buffer": (bytes, memoryview)}
    if name in plain:
        return isinstance(value, plain[name])
    if name == "Dims":
        return isinstance(value, (tuple, list)) and all(isinstance(n, int) for n in value)
    if name in ("SupportsInt", "int"):
        return hasattr(value, "__int__") and not isinstance(value, float)
    if name in ("SupportsFloat", "float"):
        return hasattr(value, "__float__")
    real = getattr(trt, name, None)
    assert isinstance(real, type), f"a parameter of unknown type {kind}"
    return isinstance(value, real) or (isinstance(value, Fake) and issubclass(value._real, real))
