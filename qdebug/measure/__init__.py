"""Streaming metrics, local error, effects at the output, causes."""
