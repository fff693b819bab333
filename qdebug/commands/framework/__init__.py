"""The training framework against its ONNX export: framework_check.py is where to start."""
