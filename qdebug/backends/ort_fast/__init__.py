"""Candidates of one plan on ONNX Runtime, assembled from parts that are prepared once."""
