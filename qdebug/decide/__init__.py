"""Which plan to take: the search, the remedies, bisect and repair without their commands."""
