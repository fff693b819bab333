"""Joins the stages; nothing else does."""
