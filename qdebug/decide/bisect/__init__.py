"""The search for layers to keep in higher precision: search.py is where to start."""
