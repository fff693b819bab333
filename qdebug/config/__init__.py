"""Settings of each command: defaults < file < flags, resolved once and frozen."""
