"""Networks that overflow in FP16 at two places, each of which breaks the outputs by itself.

Of each network of a folder that `digit_zoo.py` wrote, with its samples: the outputs of two
convolutions three times as large as FP16's largest number, undone by the weights that read them; of
a network without such a pair two layer normalizations, written out, that read four times what FP16
can square. What FP32 computes stays the same, within rounding.

    python scripts/bench/overflow_networks.py --folder zoo --out OUT
    python scripts/bench/bench_task.py --folder OUT --samples 200 --form fp16
"""

from __future__ import annotations

import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from bench_effect import Net, networks
from common import parser_of
from onnx import helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "helpers"))
import planted_network
from planted_nodes import HALF_MAX, overflowing_norms

_TIMES = 3
"""FP16's largest number that the outputs of a convolution reach."""
_SAMPLES = 64
Pair = tuple[onnx.NodeProto, onnx.NodeProto]


def main() -> None:
    """Write the networks that have two such places, and their samples."""
    ort.set_default_logger_severity(3)
    parser = parser_of(__doc__)
    parser.add_argument("--folder", type=Path, help="what digit_zoo.py wrote")
    parser.add_argument("--nets", nargs="+", metavar="NET", help="only these; default: all")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for net in networks(arguments.folder):
        if arguments.nets and net.name not in arguments.nets:
            continue
        model = overflowing(net, arguments.out)
        if model is None:
            continue
        onnx.save(model, arguments.out / f"{net.name}.onnx")
        for file, part in ((net.calib, "calib"), (net.inputs, "holdout")):
            shutil.copy(file, arguments.out / f"{net.name}_{part}.npz")
        print(net.name)


def overflowing(net: Net, folder: Path) -> onnx.ModelProto | None:
    """A network with two overflows; None where it has no two places for them."""
    model = onnx.load(net.model)
    pairs = list(_pairs(model))
    if len(pairs) > 1 and pairs[-1][0].name != pairs[0][1].name:
        for first, reader in (pairs[0], pairs[-1]):
            _enlarge(model, first, reader, net)
        return model
    for place in range(2):
        file = folder / "one.onnx"  # the second is planted into what the first has made
        onnx.save(model, file)
        network = planted_network.load(net.name, file, net.calib, net.inputs, 32)
        file.unlink()
        faults = list(overflowing_norms(network))
        if len(faults) <= place:
            return None
        made = faults[place].settings["model"]
        assert isinstance(made, onnx.ModelProto)
        model = made
    return model


def _pairs(model: onnx.ModelProto) -> Iterator[Pair]:
    """Convolutions, and the only Conv or Gemm that reads each, through Relu and MaxPool: a factor
    passes through both."""
    graph, readers = model.graph, defaultdict(list)
    for node in graph.node:
        for tensor in node.input:
            readers[tensor].append(node)
    constants = {t.name for t in graph.initializer}
    for node in graph.node:
        if node.op_type != "Conv" or not constants.issuperset(node.input[1:]):
            continue
        tensor, passed = node.output[0], list[str]()
        while len(readers[tensor]) == 1 and readers[tensor][0].op_type in ("Relu", "MaxPool"):
            passed.append(readers[tensor][0].op_type)
            tensor = readers[tensor][0].output[0]
        if passed[:1] != ["Relu"] or len(readers[tensor]) != 1:
            continue
        (reader,) = readers[tensor]
        reads = reader.op_type in ("Conv", "Gemm") and reader.input[0] == tensor
        if reads and reader.input[1] in constants:
            yield node, reader


def _enlarge(
    model: onnx.ModelProto, first: onnx.NodeProto, reader: onnx.NodeProto, net: Net
) -> None:
    """Make the outputs of `first` that large, and the weights of `reader` as much smaller."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    del shown.graph.output[:]
    shown.graph.output.append(helper.make_empty_tensor_value_info(first.output[0]))
    session = ort.InferenceSession(shown.SerializeToString())
    with np.load(net.inputs) as data:
        feeds = {i.name: data[i.name][:_SAMPLES] for i in session.get_inputs()}
    (values,) = session.run(None, feeds)
    factor = np.float32(_TIMES * HALF_MAX / np.abs(values).max())
    constants = {t.name: t for t in model.graph.initializer}
    for name, times in ((reader.input[1], 1 / factor), *((n, factor) for n in first.input[1:])):
        scaled = (numpy_helper.to_array(constants[name]) * times).astype(np.float32)
        constants[name].CopyFrom(numpy_helper.from_array(scaled, name))


if __name__ == "__main__":
    main()
