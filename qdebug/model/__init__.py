"""The user's model: its graph, its layers, and samples to run it on."""
