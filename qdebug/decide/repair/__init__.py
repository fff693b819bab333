"""Remedies tried in turn and judged; steps.py is where to start."""
