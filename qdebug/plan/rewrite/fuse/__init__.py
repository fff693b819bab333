"""Functions that are written out in single operators, as ONNX operators; one file per family."""
