"""FP16 products between Casts: TensorRT folds these and multiplies FP16 data, but sums in FP32."""

from __future__ import annotations

from collections.abc import Collection

import onnx
from onnx import TensorProto, helper

from qdebug.network.graph import Graph


def summed_in_fp32(
    proto: onnx.ModelProto, ops: Collection[str] = ("Conv", "MatMul", "Gemm")
) -> onnx.ModelProto:
    """`proto` with every FP16 product as Cast → product in FP32 → Cast. The same numbers on the CPU
    simulation, which sums in FP32 anyway."""
    types = Graph(onnx.shape_inference.infer_shapes(proto)).types
    types = {**types, **{i.name: i.data_type for i in proto.graph.initializer}}
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    del changed.graph.node[:], changed.graph.value_info[:]
    raised: set[str] = set()
    for node in proto.graph.node:
        if node.op_type not in ops or types.get(node.output[0]) != TensorProto.FLOAT16:
            changed.graph.node.append(node)
            continue
        product = onnx.NodeProto()
        product.CopyFrom(node)
        for i, tensor in enumerate(node.input):
            if tensor and tensor not in raised:
                to = f"{tensor}_summed_in_fp32"
                changed.graph.node.append(
                    helper.make_node("Cast", [tensor], [to], to, to=TensorProto.FLOAT)
                )
                raised.add(tensor)
            product.input[i] = f"{tensor}_summed_in_fp32" if tensor else ""
        product.output[0] = f"{node.output[0]}_sum"
        changed.graph.node.append(product)
        back = f"{node.output[0]}_to_fp16"
        changed.graph.node.append(
            helper.make_node(
                "Cast", [product.output[0]], [node.output[0]], back, to=TensorProto.FLOAT16
            )
        )
    return onnx.shape_inference.infer_shapes(changed)
