"""Load and execute engines: runtime.py and session.py are where to start."""
