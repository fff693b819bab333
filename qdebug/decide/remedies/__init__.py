"""What gives INT8 back its accuracy without training: a remedy per file; see registry.py."""
