"""`qdebug compare`: command.py is where to start."""
