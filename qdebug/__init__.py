"""qdebug: find out where, why and how cheaply to fix the accuracy an INT8 or FP16 network lost."""

__version__ = "0.1.0"
