"""Runtimes: what builds and executes a model."""
