"""Settings and values of earlier versions that are gone, and what to use instead of each."""

from __future__ import annotations

_GAINED_LITTLE = "It gained next to nothing behind the other remedies: leave it out."

REMOVED: dict[str, str] = {
    "int8_kernels": "Leave it out: sets of layers are evaluated in the simulation.",
    "journal": "Leave it out: what was evaluated is kept in the cache folder, and the same command "
    "goes on from there.",
    "keep_dtype": "Leave it out: what --keep asks for is kept in float32, and without it the file "
    "stays below 200 MB.",
    "plot": "`qdebug ranges --tensor NAME` shows a histogram; with --json, its numbers.",
    "mix": "Give one --method for all tensors: the best of each tensor was measurably better on no "
    "network.",
    "segments": "Nothing: ONNX Runtime maps weights in external data, and --memory-budget limits "
    "the activations.",
    "strategy": "Leave it out: there is one search, which tries all sets of few layers.",
    "to=model-explorer": "Use --to csv, or `qdebug view RUN`, which shows the network.",
    "to=ort-nbits": "Use --to onnx: ONNX Runtime makes MatMulNBits of weights in blocks itself.",
    "to=qnn": "Use --to onnx: ONNX Runtime's QNN provider reads its Q/DQ pairs.",
    **{
        f"{setting}={remedy}": _GAINED_LITTLE
        for setting in ("only", "never")
        for remedy in ("fp16-rewrites", "weight-ranges", "rounding", "split")
    },
}
"""What to write in place of a setting, by its name with underscores, or of one of its values, by
setting=value: one or two sentences."""
