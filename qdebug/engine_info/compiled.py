"""What the name and the operands of a compiled kernel tell of the matrix product inside it.

TensorRT's compiler names a kernel after its operations, in their order: the kernel
"__myl_MulMinMaxRounCastConcCorrMulAdd" scales, clips, rounds and casts its data, pads them by
concatenation, correlates them with weights, scales and adds. What it reads and writes may be FP32
all the same. So a product is judged by what it multiplies:

- "Corr", "Fc", "Gemm" and their like take both operands in one type: data that are rounded and cast
  right before it, and weights that are an Int8 constant, are multiplied in INT8.
- Without such a word the product is an elementwise "Mul" of floating point: Int8 operands are cast
  back and scaled first ("CastMul").

Where the operands leave two answers, there is none. Compared with the sources of the kernels in
1750 engines of TensorRT for RTX 1.7.1 (docs/validation/audit.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from qdebug.engine_info.tensors import FLOATS, QUANTIZED, EngineTensor

PRODUCT_WORDS = frozenset({"Corr", "Conv", "Deco", "Fc", "Gemm", "Bmm", "Mha"})
"""Operations that multiply matrices as a whole."""

MOVING_WORDS = frozenset(
    {"Move", "Tran", "Resh", "Slic", "Conc", "Repl", "Pad", "Copy", "Sque", "Expa"}
)
"""Operations that pass values on unchanged."""

_ROUNDED = ["Roun", "Cast"]
_CUT = "Etc"
"""The last word of a name that was too long."""


@dataclass(frozen=True)
class Weight:
    """The second operand of a product.

    Attributes:
        dims: as in the model.
        constant: it is one of the model's constants as it is, rather than computed from them.
    """

    dims: tuple[int, ...]
    constant: bool


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel whose name lists its operations.

    Attributes:
        words: the operations in order, such as ("Mul", "Add", "Relu").
        inputs, constants, outputs: its operands.
    """

    words: tuple[str, ...]
    inputs: tuple[EngineTensor, ...]
    constants: tuple[EngineTensor, ...]
    outputs: tuple[EngineTensor, ...]

    def matrix_precision(self) -> str:
        """The type that its products are computed in (as `EngineTensor.dtype`); "" when the file
        does not tell, or when they differ."""
        found = {
            self._multiplied_after(self.words[:i])
            for i, word in enumerate(self.words)
            if word in PRODUCT_WORDS
        }
        return found.pop() if len(found) == 1 and _CUT not in self.words else ""

    def elementwise_precision(self, weight: Weight | None) -> str:
        """The type that a product without a word of its own is computed in; "" as above.

        Args:
            weight: of the product, if it is known.
        """
        if self._left_quantized():
            return ""
        floats = {t.dtype for t in self._operands if t.dtype in FLOATS}
        held = {t.dtype for t in self.constants if t.dtype in FLOATS + QUANTIZED}
        if len(floats) == 1 and "Cast" not in self.words:
            return floats.pop()
        if weight is not None and weight.constant and len(held) == 1 and not held & {*QUANTIZED}:
            return held.pop()  # whatever is cast, it is to the type of the weights
        if len(floats) == 1 and self._quantizes and _CUT not in self.words:
            return floats.pop()  # the casts are from and to quantized types
        return (self._by_size(weight.dims) if weight else "") or self._by_order()

    @cached_property
    def product_count(self) -> int:
        """How many of its operations multiply matrices as a whole."""
        return sum(word in PRODUCT_WORDS for word in self.words)

    @cached_property
    def _operands(self) -> tuple[EngineTensor, ...]:
        return (*self.inputs, *self.constants, *self.outputs)

    @cached_property
    def _quantizes(self) -> bool:
        return "Roun" in self.words or any(t.dtype in QUANTIZED for t in self._operands)

    @cached_property
    def _quantized_inputs(self) -> int:
        return sum(t.dtype in QUANTIZED for t in self.inputs)

    @cached_property
    def _quantized_weights(self) -> int:
        """How many constants are quantized and do not only pad what is concatenated."""
        stored = sum(t.dtype in QUANTIZED for t in self.constants)
        return max(0, stored - self.words.count("Conc"))

    def _multiplied_after(self, before: Sequence[str]) -> str:
        """The type of a product whose data went through the operations `before` it."""
        stored = {t.dtype for t in (*self.inputs, *self.constants) if t.dtype in QUANTIZED}
        done = _without_moves(before)
        if done[-2:] == ("Roun", "Cast"):  # INT8, if it can be multiplied with something quantized
            both = sum(pair == ("Roun", "Cast") for pair in pairwise(done)) > 1
            partner = self._quantized_weights or self._quantized_inputs or both
            return "int8" if partner and len(stored) < 2 else ""
        left = self._quantized_inputs + self._quantized_weights - _dequantized(done)
        if left <= 0:
            return self._floating(done)
        # What is cast right before may have been rounded by another kernel, or be the weights.
        told = left > 1 and done[-1:] != ("Cast",) and len(stored) == 1
        return stored.pop() if told else ""

    def _floating(self, done: tuple[str, ...]) -> str:
        """The type of the weights, or else of the data, of a product in floating point."""
        held = self._matrices or {t.dtype for t in self.constants if t.dtype in FLOATS}
        read = {t.dtype for t in self.inputs if t.dtype in FLOATS}
        found = held if self._matrices or "Cast" in done else read
        return found.copy().pop() if len(found) == 1 else ""

    @cached_property
    def _matrices(self) -> set[str]:
        """The types of constants in floating point that are no vectors."""
        floats = [t for t in self.constants if t.dtype in FLOATS]
        return {t.dtype for t in floats if t.dims is None or len(_long(t.dims)) > 1}

    def _left_quantized(self) -> bool:
        """Whether something quantized may be multiplied as it is: what is rounded and cast is
        neither cast back nor written, or more is read than is cast back."""
        words = [*(w for w in self.words if w not in MOVING_WORDS), "Cast"]
        after = {
            c for *pair, c in zip(words, words[1:], words[2:], strict=False) if pair == _ROUNDED
        }
        if after - {"Cast", _CUT} and not any(t.dtype in QUANTIZED for t in self.outputs):
            return True
        return self._quantized_inputs + self._quantized_weights > self.words.count("Cast")

    def _by_size(self, dims: Sequence[int]) -> str:
        """The type of the constants that have the size of the weights, whatever their layout."""
        size = sorted(_long(dims))
        found = {t.dtype for t in self.constants if sorted(_long(t.dims)) == size}
        return found.pop() if len(size) > 1 and len(found) == 1 and found <= {*FLOATS} else ""

    def _by_order(self) -> str:
        """The type between the casts at which all multiplications stand, where casts are from one
        floating point type to another only."""
        reads, writes = ({t.dtype for t in x} for x in (self.inputs, self.outputs))
        casts = self.words.count("Cast")
        if self._quantizes or _CUT in self.words or len(reads) != 1 or len(writes) != 1:
            return ""
        stages = list(_stages(self.words))
        used = {k for k, stage in enumerate(stages) if {"Mul", "Sum"} & {*stage}}
        # A type between that only the constants show.
        between = {t.dtype for t in self.constants if t.dtype in FLOATS} - reads - writes
        middle = [next(iter(between)) if len(between) == 1 else ""] * (casts == 2)
        kinds = [*reads, *middle, *writes]
        changes = all(a != b for a, b in pairwise(kinds))
        found = kinds[used.pop()] if len(used) == 1 and len(kinds) == casts + 1 and changes else ""
        return found if self._matrices <= {found} else ""


def operations(name: str) -> tuple[str, ...]:
    """The operations that a compiled kernel's name lists: ("Mul", "Add", "Max") for
    "__myl_MulAddMax_myl0_3"; empty for other names."""
    match = re.match(r"__myl_([A-Z][A-Za-z0-9]*)_", name)
    return tuple(re.findall(r"[A-Z][a-z0-9]*", match[1])) if match else ()


def _without_moves(words: Sequence[str]) -> tuple[str, ...]:
    """`words` less the moves at their end."""
    end = len(words)
    while end and words[end - 1] in MOVING_WORDS:
        end -= 1
    return tuple(words[:end])


def _dequantized(words: Sequence[str]) -> int:
    """How often something that was not rounded here is cast and scaled."""
    padded = ["", *(w for w in words if w not in MOVING_WORDS)]
    triples = zip(padded, padded[1:], padded[2:], strict=False)
    return sum(a != "Roun" and (b, c) == ("Cast", "Mul") for a, b, c in triples)


def _stages(words: Sequence[str]) -> Iterator[list[str]]:
    """`words` parted at each Cast."""
    stage: list[str] = []
    for word in words:
        if word == "Cast":
            yield stage
            stage = []
        else:
            stage.append(word)
    yield stage


def _long(dims: Sequence[int] | None) -> list[int]:
    """The axes of more than one element."""
    return [d for d in dims or () if d != 1]
