"""FP16 on ONNX Runtime's CPU, rounded where an FP16 engine rounds."""
