"""Boxes of detectors: what an output means, which boxes it gives, and how these agree with
others."""
