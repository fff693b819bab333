"""Which tensor of a candidate is which of the FP32 model, proven on samples."""
