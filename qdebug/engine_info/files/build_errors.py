"""What the errors of TensorRT's builder mean, where that is known, and what to do."""

from __future__ import annotations

import re

_MEANINGS = (
    (
        r"could not find any implementation|no implementation",
        "No kernel computes this node in the precisions, formats and workspace that are allowed. "
        "Allow FP16 or FP32 beside INT8, lift the precision of the node, or give more workspace "
        "(--memPoolSize=workspace:SIZE).",
    ),
    (
        r"no scaling factors|calibration failure|dynamic range",
        "A tensor of an INT8 layer has no range. Give a calibrator or a calibration cache, or "
        "build from a model with Q/DQ pairs.",
    ),
    (
        r"no optimization profile has been defined|min/opt/max|optimization profile",
        "The model has dynamic axes. Give their sizes: --minShapes, --optShapes and --maxShapes.",
    ),
    (
        r"no importer registered|unsupported[ _]node|plugin not found|not supported by the parser",
        "TensorRT's parser does not know this operator. Replace it, or load the plugin that "
        "implements it (--staticPlugins).",
    ),
    (
        r"out ?of ?memory|outofmemory|cudaMalloc",
        "The GPU's memory is full. Free it, or lower the workspace and the largest shapes.",
    ),
    (
        r"sm ?\d+ is not supported|target gpu|no kernel image|unsupported sm",
        "This version of TensorRT does not support the GPU.",
    ),
    (
        r"version tag|serialization (?:assertion|error)|magic tag|plan file",
        "The engine was built by another version of TensorRT, or its file is damaged: build it "
        "anew with this one.",
    ),
    (
        r"cuda initialization failure|cudaerror|cuda (?:driver|error)|no cuda-capable",
        "CUDA could not be used: compare the driver with the version of CUDA that TensorRT needs.",
    ),
    (
        r"strongly typed|precision constraints|obey",
        "A precision that was asked for cannot be built. Types of a strongly typed network are "
        "those of the model.",
    ),
)


def meaning_of(message: str) -> str:
    """What an error means and what to do; "" where that is not known."""
    return next((text for mark, text in _MEANINGS if re.search(mark, message, re.IGNORECASE)), "")
