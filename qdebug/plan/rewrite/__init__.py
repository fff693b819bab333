"""Graph rewrites, one per file: a model in, a model out."""
