"""`qdebug ranges`: command.py is where to start."""
