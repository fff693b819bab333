"""`qdebug check`: the model by itself, the samples by themselves, and both together."""
