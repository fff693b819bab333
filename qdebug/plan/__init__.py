"""Precision plans as data, their two lowerings, and their export to other tools."""
