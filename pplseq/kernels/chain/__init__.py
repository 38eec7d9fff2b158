"""Rows of a chain under one matrix, from tables to likelihood, posteriors, counts and best paths in one compiled call."""

LOWEST = 1e-280  # a smaller number may have lost digits, or be what is left of several that underflowed
