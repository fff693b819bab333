"""Run files and the cache of results."""
