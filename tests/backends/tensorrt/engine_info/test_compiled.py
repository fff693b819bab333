"""What the names and operands of compiled kernels tell of the products inside."""

from __future__ import annotations

import pytest

from qdebug.engine_info.compiled import CompiledKernel, Weight, operations
from qdebug.engine_info.tensors import EngineTensor


def _kernel(name: str, reads: str, holds: str, writes: str) -> CompiledKernel:
    """Operands as "int8[8,4,1,1] fp32[1]"."""

    def tensors(text: str) -> tuple[EngineTensor, ...]:
        parts = [part.rstrip("]").split("[") for part in text.split()]
        return tuple(
            EngineTensor("t", dtype, dims=tuple(int(d) for d in dims.split(",")))
            for dtype, dims in parts
        )

    words = operations(f"__myl_{name}_myl0_0")
    return CompiledKernel(words, tensors(reads), tensors(holds), tensors(writes))


# Kernels of engines of TensorRT for RTX 1.7.1, and what their sources multiply.
QUANTIZED_INSIDE = "MulMinMaxRounCastConcCorrMulAddMove"
PADDED = "int8[1,2,1,1] fp32[1,8,1,1] int8[8,4,1,1] fp32[1,8,1,1]"


@pytest.mark.parametrize(
    ("name", "reads", "holds", "writes", "multiplies"),
    [
        (QUANTIZED_INSIDE, "fp32[1,2,1,1]", PADDED, "fp32[1,8,1,1]", "int8"),
        ("MulMinMaxRounCastCorrMulCast", "fp16[1,4,1,1]", "fp32[1,4,1,1] int8[4,4,1,1]",
         "fp16[1,4,1,1]", "int8"),
        ("MulCastAddReluDivMinMaxRounCastConcCorrMulCast", "fp32[1,1,1,1]",
         "fp32[1,4,1,1] int8[1,3,1,1] int8[4,4,1,1]", "fp16[1,4,1,1]", "int8"),
        # One of the inputs is dequantized for an addition, the other is multiplied.
        ("CastMulCorrMulAddAdd", "int8[1,4,1,1] int8[1,4,1,1]", "int8[4,4,1,1] fp32[1,4,1,1]",
         "fp32[1,4,1,1]", "int8"),
        ("CorrMul", "int8[1,4,1,1]", "fp32[1,9,1,1] int8[9,4,1,1]", "fp32[1,9,1,1]", "int8"),
        # Quantized data and floating point weights; quantized weights and floating point data.
        ("CastMulFc", "int8[32,16]", "fp32[16,16]", "fp32[32,16]", "fp32"),
        ("CastMulCastFc", "fp32[32,16]", "fp32[1,16] int8[16,16]", "fp32[32,16]", "fp32"),
        ("CorrMulMax", "fp16[1,8,5,5]", "fp16[8,8,3,3] fp16[1]", "fp16[1,8,5,5]", "fp16"),
        # What pads a result is no weight.
        ("CorrMulMinMaxRounCastConc", "fp16[1,8,5,5]", "fp16[8,8,3,3] int8[1,2,5,5]",
         "int8[1,8,5,5]", "fp16"),
        # INT8 in truth, but the cast may be that of the weights.
        ("CastCorrMulCastAdd", "fp16[1,7,1,1]", "fp16[1,7,1,1] int8[7,4,1,1]", "fp16[1,7,1,1]",
         ""),
        ("MinMaxRounCastCorrMul", "fp32[1,8,1,1]", "fp32[1,8,1,1]", "fp32[1,8,1,1]", ""),
        ("CorrMulMinMaxRounCastCorrMul", "fp16[1,8,1,1]", "fp16[8,8,1,1] int8[8,8,1,1]",
         "fp16[1,8,1,1]", ""),
        (QUANTIZED_INSIDE + "Etc", "fp32[1,2,1,1]", PADDED, "fp32[1,8,1,1]", ""),
    ],
)  # fmt: skip
def test_products_as_a_whole(
    name: str, reads: str, holds: str, writes: str, multiplies: str
) -> None:
    assert _kernel(name, reads, holds, writes).matrix_precision() == multiplies


VECTOR, MATRIX = Weight((9, 1), constant=True), Weight((9, 7), constant=True)
COMPUTED = Weight((9, 7), constant=False)


@pytest.mark.parametrize(
    ("name", "reads", "holds", "writes", "weight", "multiplies"),
    [
        ("MulSum", "fp16[1,9]", "fp16[1,9]", "fp16[1,1]", VECTOR, "fp16"),
        ("CastReshMulSum", "fp32[1,9]", "fp16[1,7,9]", "fp16[1,7]", MATRIX, "fp16"),
        ("CastMulSumCast", "fp32[1,9]", "fp16[1,9]", "fp32[1,1]", VECTOR, "fp16"),
        ("MulCastAddReluReshMulSum", "fp32[1,9]", "fp32[1,9] fp16[1,9] fp16[7,9]", "fp16[1,7]",
         COMPUTED, "fp16"),
        # Rounded, and cast back before it is multiplied.
        ("MulMinMaxRounCastReshCastMulReshMulSum", "fp32[1,9]", "fp32[1,7,9] fp32[1] fp32[1]",
         "fp32[1,7]", MATRIX, "fp32"),
        ("CastMulCastReshMulSum", "fp32[1,9]", "int8[1,7,9] fp32[1,7]", "fp32[1,7]", COMPUTED,
         "fp32"),
        # Two activations, cast to a type that nothing names.
        ("CastSlicMulMulAddCast", "fp32[3,20]", "fp32[1]", "fp32[3,9]", COMPUTED, ""),
        ("MulAddCast", "fp16[3,20]", "fp16[1]", "fp32[3,9]", None, "fp16"),
        ("CastMulAddCastMul", "fp16[3,20]", "fp16[1]", "fp16[3,9]", None, ""),
        ("MulMinMaxRounCastMulSum", "fp32[1,9]", "int8[1,9]", "fp32[1,1]", VECTOR, ""),
        ("CastMulSumEtc", "fp32[1,9]", "fp32[1,9]", "fp32[1,1]", None, ""),
    ],
)  # fmt: skip
def test_elementwise_products(
    name: str, reads: str, holds: str, writes: str, weight: Weight | None, multiplies: str
) -> None:
    assert _kernel(name, reads, holds, writes).elementwise_precision(weight) == multiplies
