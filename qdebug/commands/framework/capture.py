"""What a PyTorch module computes on some samples, into a file for `compare --framework`: its
outputs, those of its modules by forward hooks, and what is known of it. Memory holds one batch."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
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
        facts = _facts(module, torch)
        kept = _Modules()
        for batch in _batches(feeds, batch_size):
            arrays = {name: as_array(value) for name, value in batch.items()}
            size = len(next(iter(arrays.values())))
            seen.clear()
            outputs = _run(module, batch, torch)
            others = {name: array for name, array in seen.items() if name not in outputs}
            activations = kept.of_batch(others, size)
            if not count:
                repeated = _run(module, batch, torch)
                same = (np.array_equal(outputs[n], repeated[n], equal_nan=True) for n in outputs)
                facts |= {"repeatable": all(same), "batch_size": size, "modules": [*activations]}
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
        writer.set_facts({**facts, "left_out": kept.left_out})
    return Path(path)


@dataclass
class _Modules:
    """Which modules give a row for each sample of every batch, all of one shape.

    Attributes:
        shapes: of a row, by the module's name, as the first batch had it; None before that.
        left_out: why a module is not kept, by name.
    """

    shapes: dict[str, tuple[int, ...]] | None = None
    left_out: dict[str, str] = field(default_factory=dict)

    def of_batch(self, seen: Mapping[str, Array], size: int) -> dict[str, Array]:
        """What is kept of what ran on a batch of `size` samples."""
        rows = {n: a.shape[1:] for n, a in seen.items() if a.ndim and len(a) == size}
        self.shapes = rows if self.shapes is None else self.shapes
        for name in [*self.shapes, *(n for n in seen if n not in self.shapes)]:
            shape = rows.get(name)
            if name not in seen:
                why = "it did not run for all samples"
            elif shape is None:
                why = f"of shape {list(seen[name].shape)} for {counted(size, 'sample')}"
            elif name not in self.shapes:
                why = "it did not run, or not by sample, in the first batch"
            elif shape != self.shapes[name]:
                why = (
                    f"of shape {list(self.shapes[name])} for some samples, {list(shape)} for others"
                )
            else:
                continue
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


_KEEPING_STATISTICS = ("BatchNorm", "InstanceNorm")
_DROPPING = "Dropout"


def _facts(module: Any, torch: Any) -> dict[str, Any]:
    """What tells one export from another: mode, weights, settings of normalizations."""
    training, keeps_statistics = [], False
    for name, m in module.named_modules():
        kind = type(m).__name__
        # Without running statistics a normalization is the same in both modes.
        keeps = kind.startswith(_KEEPING_STATISTICS) and m.running_mean is not None
        if m.training and (keeps or kind.startswith(_DROPPING)):
            training.append(f"{name} ({kind})")
            keeps_statistics |= keeps
    parameters = {}
    for name, value in module.named_parameters():
        array = as_array(value)
        parameters[name] = {"dtype": str(value.dtype), "digests": weight_digests(array)}
    return {
        "torch": str(torch.__version__),
        "training": training,
        "keeps_statistics": keeps_statistics,
        "parameters": parameters,
    }


def weight_digests(weight: Array) -> dict[str, list[str]]:
    """SHA-256 of a weight as exporters store it: as it is and transposed; by what it is rounded to,
    "" for nothing."""
    digests = {}
    for name, dtype in (("", None), ("FP16", np.float16), ("BF16", ml_dtypes.bfloat16)):
        with np.errstate(over="ignore"):
            rounded = weight if dtype is None else weight.astype(dtype).astype(np.float32)
        ways = [rounded, rounded.T] if rounded.ndim == 2 else [rounded]
        digests[name] = [weight_digest(way) for way in ways]
    return digests


def weight_digest(weight: Array) -> str:
    """SHA-256 of the values in FP32, in the order of the axes."""
    values = np.ascontiguousarray(weight, np.float32)
    return hashlib.sha256(str(values.shape).encode() + values.tobytes()).hexdigest()
