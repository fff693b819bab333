"""TensorRT: 10, 11 and TensorRT for RTX."""
