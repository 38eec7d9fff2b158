"""Models that read one observation after another."""
