"""What an engine is: its layers, their precision and fusion, read from files that describe it."""
