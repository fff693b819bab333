"""`qdebug bisect`: command.py is where to start."""
