"""`qdebug calibrate`: command.py is where to start."""
