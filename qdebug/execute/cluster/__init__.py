"""Work spread over processes and machines: dispatch.py is where to start."""
