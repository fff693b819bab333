"""Calibration: arrays in, ranges (amax) out; one file per method."""
