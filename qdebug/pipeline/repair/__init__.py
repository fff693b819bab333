"""`qdebug repair`: command.py is where to start."""
