"""ONNX Runtime as preparation asks it: what opsets it takes, and what follows from constants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from qdebug.network.weights import ROOT

if TYPE_CHECKING:
    import onnxruntime as ort


def quiet_session(proto: onnx.ModelProto) -> ort.InferenceSession:
    """A session of a model whose constants may lie in files, on one core. It computes each node as
    it is, and prints nothing.

    Raises:
        Exception: of ONNX Runtime's many kinds: it does not take the model.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", ROOT)
    return ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
