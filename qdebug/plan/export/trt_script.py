"""Python that constrains the layers of a TensorRT 10 network, for the scripts of two targets."""

from __future__ import annotations

from qdebug.plan.export.implicit import Implicit

CONSTRAIN = '''\
def constrain(network, trt):
    """Set the precision of every layer that TensorRT's parser made of a node in NODES. Returns the
    nodes that it made none of."""
    by_name = {node[0]: node for node in NODES if node[0]}
    by_tensor = {tensor: node for node in NODES for tensor in node[3]}
    types = {"fp32": trt.float32, "fp16": trt.float16}
    done = []
    for i in range(network.num_layers):
        layer = network.get_layer(i)
        outputs = [layer.get_output(j) for j in range(layer.num_outputs)]
        floats = [j for j, output in enumerate(outputs) if output.dtype in types.values()]
        written = [by_tensor[output.name] for output in outputs if output.name in by_tensor]
        node = written[0] if written else by_name.get(onnx_node(layer))
        if node is None or not floats or layer.type == trt.LayerType.CONSTANT:
            continue
        layer.precision = types[node[1]]
        if node[2]:
            for j in floats:
                last = outputs[j].name in node[3]  # else it is inside, as of a Gemm's product
                layer.set_output_type(j, types[node[2] if last else node[1]])
        done.append(node)
    return [node[0] or node[3][0] for node in NODES if node not in done]


def onnx_node(layer):
    """The ONNX node that the parser made a layer of. One node may become several layers."""
    marker, metadata = "[ONNX Layer: ", getattr(layer, "metadata", "")
    return metadata[len(marker):-1] if metadata.startswith(marker) else layer.name
'''


def nodes_literal(form: Implicit) -> str:
    """The constant NODES: name (None where it is not the node's own), precision, that of its
    outputs (None where it is not constrained), its outputs."""
    if not form.pins:
        return "NODES = []"
    lines = []
    for pin in form.pins:
        name = pin.trt_name if pin.node.own_name or not pin.node.name else None
        stored = str(pin.stored) if pin.stored else None
        entry = (name, str(pin.precision), stored, list(pin.node.float_outputs))
        lines.append(f"    {entry!r},")
    return "NODES = [\n" + "\n".join(lines) + "\n]"


def docstring(text: str) -> str:
    """`text` such as it may stand in a docstring, on one line."""
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"').replace("\n", " ")
