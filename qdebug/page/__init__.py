"""The page: what `qdebug report` writes into one HTML file, and `qdebug view` serves."""
