"""One file per kind of file that tells of an engine: layers, logs, profiles, times, the GPU, ONNX.

What follows from the layers that are read here is beside this folder.
"""
