"""What a PyTorch module computes on some samples, into a file for `compare --framework`: its
outputs, and those of its modules by forward hooks. Memory holds one batch."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qdebug.commands.framework.framework_arrays import as_array, named_arrays
from qdebug.errors import SampleError, UsageError, required
from qdebug.store.capture_file import DIGESTS, CaptureWriter, digests_of
from qdebug.types import Array
from qdebug.wording import counted

_BATCH = 16
_CODE = "QD-USAGE-CAPTURE"


def capture(
    module: Any,
    feeds: Any,
    path: str | os.PathLike[str],
    *,
    modules: Iterable[str] | None = None,
    batch_size: int = _BATCH,
    force: bool = False,
) -> Path:
    """Run a PyTorch module on samples, and write what it gives for `compare(framework=path)`.

    The module runs as it is, in training mode too where it is in that: call `module.eval()` first.
    Statistics that it keeps are put back afterwards.

    Args:
        module: a `torch.nn.Module`.
        feeds: its inputs: a dict of arrays with all samples on their leading axes, or an iterable
            of batches, each a dict, a tuple, an array or a tensor.
        path: of the file, `.h5`.
        modules: names of the modules whose outputs are kept, too; None keeps those of all that have
            no modules in them. Left out, and named in the file, are those that do not give a row
            for each sample, such as one that does not run on every batch.
        batch_size: samples per execution, where `feeds` are all samples.
        force: replace a file that exists.

    Returns:
        The path of the file.

    Raises:
        UsageError: PyTorch is not installed, `module` is no module, or has none of that name.
        SampleError: there are no samples, or an output has not a row for each.
        StoreError: the file exists, cannot be written, or outputs differ in shape between samples.
    """
    torch = required("torch", "capture", code="QD-USAGE-TORCH")
    if not isinstance(module, torch.nn.Module):
        raise UsageError(
            f"capture takes a torch.nn.Module, not a {type(module).__name__}",
            "Give the module that was exported.",
            code=_CODE,
        )
    own = dict(module.named_modules())
    wanted = (
        [n for n, m in own.items() if n and not list(m.children())]
        if modules is None
        else [*modules]
    )
    missing = next((name for name in wanted if name not in own), None)
    if missing is not None:
        raise UsageError(
            f"capture: the module has no '{missing}'",
            f"Its modules are {', '.join(list(own)[1:9])}, ….",
            code=_CODE,
        )
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    count = 0
    with ExitStack() as stack:
        writer = stack.enter_context(CaptureWriter(os.fspath(path), force=force))
        stack.callback(_put_back, module, buffers)
        seen: dict[str, Array] = {}
        for name in wanted:
            hook = own[name].register_forward_hook(_keeping(name, seen, torch))
            stack.callback(hook.remove)
        kept = _Modules()
        for batch in _batches(feeds, batch_size):
            arrays = {name: as_array(value) for name, value in batch.items()}
            size = len(next(iter(arrays.values())))
            seen.clear()
            outputs = _run(module, batch, torch)
            others = {name: array for name, array in seen.items() if name not in outputs}
            activations = kept.of_batch(others, size)
            for name, array in outputs.items():
                if not array.ndim or len(array) != size:
                    raise SampleError(
                        f"capture: output '{name}' has shape {list(array.shape)}, and there are "
                        f"{counted(size, 'sample')} in the batch.",
                        "Let forward give its outputs with the samples on the leading axis.",
                        code="QD-SAMPLES-FRAMEWORK",
                    )
            writer.add({DIGESTS: digests_of(arrays, size), **outputs, **activations})
            count += size
        if not count:
            raise SampleError(
                "capture: there are no samples", "Give some.", code="QD-SAMPLES-EMPTY"
            )
        writer.drop(kept.left_out)
        writer.set_facts({"modules": [*kept.shapes], "left_out": kept.left_out})
    return Path(path)


@dataclass
class _Modules:
    """Which modules give a row for each sample of every batch, all of one shape.

    Attributes:
        shapes: of a row, by the module's name in order of execution, as the first batch had it;
            None where there was not a row for each sample.
        left_out: why a module is not kept, by name.
    """

    shapes: dict[str, tuple[int, ...] | None] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def of_batch(self, seen: Mapping[str, Array], size: int) -> dict[str, Array]:
        """What is kept of what ran on a batch of `size` samples."""
        rows = {n: a.shape[1:] if a.ndim and len(a) == size else None for n, a in seen.items()}
        self.shapes = self.shapes or rows
        for name in {**self.shapes, **rows}:
            if rows.get(name) is None or rows[name] != self.shapes.get(name):
                why = "it did not run for all samples"
                if name in rows and name in self.shapes:
                    why = f"of shape {list(seen[name].shape)} for {counted(size, 'sample')}"
                self.left_out.setdefault(name, why)
        return {n: seen[n] for n in self.shapes if n not in self.left_out}


def _keeping(name: str, seen: dict[str, Array], torch: Any) -> Callable[..., None]:
    def keep(_: Any, __: Any, output: Any) -> None:
        first = output[0] if isinstance(output, list | tuple) and output else output
        if isinstance(first, torch.Tensor) and first.is_floating_point():
            seen[name] = as_array(first)

    return keep


def _run(module: Any, batch: Mapping[str, Any], torch: Any) -> dict[str, Array]:
    """The outputs on a batch: inputs by keyword where forward calls them so, else by order."""
    at = next((p for p in module.parameters()), None)
    values = {
        n: (x if isinstance(x, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(x)))
        for n, x in batch.items()
    }
    if at is not None:
        values = {n: x.to(at.device) for n, x in values.items()}
        values = {n: x.to(at.dtype) if x.is_floating_point() else x for n, x in values.items()}
    named = set(batch) <= set(inspect.signature(module.forward).parameters)
    with torch.no_grad():
        returned = module(**values) if named else module(*values.values())
    returned = dict(returned) if isinstance(returned, Mapping) else returned
    return named_arrays(returned)


def _batches(feeds: Any, batch_size: int) -> Iterator[dict[str, Any]]:
    """Each batch as inputs by name, those that have none by number."""
    if isinstance(feeds, Mapping):
        count = min(len(array) for array in feeds.values())
        for start in range(0, count, batch_size):
            yield {str(n): a[start : start + batch_size] for n, a in feeds.items()}
        return
    for batch in feeds:
        if isinstance(batch, Mapping):
            yield {str(name): value for name, value in batch.items()}
        else:
            several = batch if isinstance(batch, list | tuple) else (batch,)
            yield {str(k): value for k, value in enumerate(several)}


def _put_back(module: Any, buffers: Mapping[str, Any]) -> None:
    for name, buffer in module.named_buffers():
        if name in buffers:
            buffer.data.copy_(buffers[name])
