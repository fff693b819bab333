"""Results as tables, JSON, plots and HTML."""
