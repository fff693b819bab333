"""Runtimes: what builds and executes one model, in one registry; the emulation of FP16 kernels.

Pairs of models, and samples, are in `execute`.
"""
