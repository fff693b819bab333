"""Which tensor of an ONNX model is which array of the framework: by name, by order, or by the
scopes that exporters write into the names of nodes."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from qdebug.network.graph import Graph
from qdebug.network.samples.matching import aliases
from qdebug.types import Array, Skipped, Tensors

_NUMBERED = re.compile(r"(?:output|out|arr)_?\d+$")
"""Names that say no more than an order, such as those of `numpy.savez(path, first, second)`."""
_SCOPES = "pkg.torch.onnx.name_scopes"
"""Where torch.export's converter writes the modules that a node came from."""


@dataclass(frozen=True)
class Candidates:
    """The tensors that an array may be.

    Attributes:
        how: see FrameworkTensor.
        tensors: the likeliest first; none where nothing is called alike.
    """

    name: str
    how: str
    tensors: tuple[str, ...]


@dataclass
class Matches:
    """Which tensor each array is.

    Attributes:
        tensors: by the array's name.
        how: see FrameworkTensor.
        unmatched: arrays that are none, and why.
    """

    tensors: dict[str, str]
    how: dict[str, str]
    unmatched: list[Skipped]


def is_numbered(name: str) -> bool:
    """Whether a name says no more than an order."""
    return _NUMBERED.match(name) is not None


def candidates_of(names: Sequence[str], graph: Graph) -> list[Candidates]:
    """What each array may be; of an output or a tensor by its name, of outputs by their order, of
    modules by scope. `names` are in the framework's order of execution."""
    tensors = dict.fromkeys([*graph.outputs, *graph.activations()])
    by_alias = {alias: t for t in reversed([*tensors]) for alias in aliases(t)}
    numbered = [name for name in names if name not in by_alias and is_numbered(name)]
    outputs = [t for t in graph.outputs if t not in {by_alias.get(n) for n in names}]
    ordered = dict(zip(numbered, outputs, strict=False))
    if not ordered and len(names) == len(outputs) == 1:
        ordered = {names[0]: outputs[0]}
    scopes, found = _scopes(graph), []
    for name in names:
        if name in by_alias:
            found.append(Candidates(name, "name", (by_alias[name],)))
        elif name in ordered:
            found.append(Candidates(name, "order", (ordered[name],)))
        else:
            found.append(Candidates(name, "scope", tuple(_of_module(name, graph, scopes))))
    return found


def matched(candidates: Sequence[Candidates], values: Tensors, tensors: Tensors) -> Matches:
    """Which tensor of the model each array is: of several candidates the one with the nearest
    values. A module without nodes of its own is taken for folded into the one before, where it is
    nearer to what that one's tensor is now.

    Args:
        values: of the arrays, on some samples. tensors: of the model, on the same.
    """
    found = Matches({}, {}, [])
    taken = {t for c in candidates if c.how != "scope" for t in c.tensors}
    before = ""
    for candidate in candidates:
        name, own = candidate.name, values[candidate.name]
        if before and not candidate.tensors:
            tensor = found.tensors[before]
            if _distance(own, tensors[tensor]) < _distance(values[before], tensors[tensor]):
                found.unmatched.append(Skipped(before, f"'{name}' is folded into it"))
                del found.tensors[before]
                found.tensors[name], found.how[name], before = tensor, "folded", name
                continue
        errors = {t: _distance(own, tensors[t]) for t in candidate.tensors if t in tensors}
        tensor = min(errors, key=lambda t: errors[t], default="")
        if errors.get(tensor, math.inf) == math.inf:
            shape = f"of shape {list(own.shape)}"
            reason = shape if candidate.tensors else "no node's name has its scope"
            found.unmatched.append(Skipped(name, reason))
        elif candidate.how != "scope" or tensor not in {*taken, *found.tensors.values()}:
            found.tensors[name], found.how[name] = tensor, candidate.how
            before = name if candidate.how == "scope" else before
    return found


def _distance(array: Array, tensor: Array) -> float:
    """Σ(array − tensor)² of what is finite in both; +inf where they are not of one shape."""
    values = aligned(array, tensor.shape)
    if values is None:
        return math.inf
    with np.errstate(invalid="ignore"):  # the same infinity in both
        difference = values.astype(np.float64) - tensor
    return float(np.square(difference[np.isfinite(difference)]).sum())


def _of_module(name: str, graph: Graph, scopes: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """What the nodes of a module give to others, the last first, then what else they compute."""
    path = tuple(name.split("."))
    own = [n for n in graph.nodes if scopes.get(n.name, ())[: len(path)] == path]
    inside = {n.name for n in own}
    read = {t for n in graph.nodes if n.name not in inside for t in n.reads}
    tensors = [t for n in reversed(own) for t in n.outputs if t and graph.is_float(t)]
    yield from dict.fromkeys([*(t for t in tensors if t in read or t in graph.outputs), *tensors])


def _scopes(graph: Graph) -> dict[str, tuple[str, ...]]:
    """The path of the module that each node came from, by the node's name."""
    written = {
        (node.name or node.output[0]): scope
        for node in graph.proto.graph.node
        if node.output and (scope := _written_scope(node))
    }
    return {n.name: written.get(n.name) or scope_of(n.name) for n in graph.nodes}


def _written_scope(node: onnx.NodeProto) -> tuple[str, ...]:
    """By torch.export's converter: such as "['', 'layer1.0', 'layer1.0.conv1', 'conv2d']"."""
    text = next((p.value for p in node.metadata_props if p.key == _SCOPES), "")
    try:
        scopes = ast.literal_eval(text) if text else []
    except (ValueError, SyntaxError):
        return ()
    modules = [s for s in scopes[:-1] if isinstance(s, str) and s]
    return tuple(modules[-1].split(".")) if modules else ()


def scope_of(node: str) -> tuple[str, ...]:
    """By TorchScript's converter: of `/layer1/layer1.0/conv1/Conv` it is layer1, 0, conv1."""
    path: list[str] = []
    for part in node.strip("/").split("/")[:-1]:
        own = part.split(".")
        # A child of a list or of a Sequential carries its parent's name once more.
        parent = own[:-1]
        path += own[-1:] if parent and path[-len(parent) :] == parent else own
    return tuple(path)


def aligned(array: Array, shape: tuple[int, ...]) -> Array | None:
    """An array of the framework in the shape of the ONNX model's tensor: channels last put
    second, samples moved to the axis where the model has them, axes of size 1 dropped or added;
    None where it is none of these."""
    if array.shape == shape:
        return array
    ways = [np.moveaxis(array, 3, 1)] if array.ndim == 4 else []
    ways += [np.moveaxis(array, 0, axis) for axis in range(1, array.ndim)]
    moved = next((way for way in ways if way.shape == shape), None)
    if moved is not None:
        return np.ascontiguousarray(moved)
    squeezed = [tuple(n for n in s if n != 1) for s in (array.shape, shape)]
    return array.reshape(shape) if squeezed[0] == squeezed[1] else None
