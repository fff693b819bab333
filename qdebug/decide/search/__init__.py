"""The search for the cheapest plan; knows only a predicate."""
