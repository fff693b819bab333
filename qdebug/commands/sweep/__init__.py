"""`qdebug sweep`: command.py is where to start."""
