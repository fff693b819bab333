"""Three ways to see the tensors inside an engine while it runs."""
