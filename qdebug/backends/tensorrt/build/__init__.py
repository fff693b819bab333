"""Build engines: build.py is where to start."""
