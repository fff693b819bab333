"""`qdebug report`: from results and run files to a page."""
