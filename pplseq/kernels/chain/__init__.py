"""Rows of a chain under one matrix, from tables to likelihood, posteriors, counts and best paths in one compiled call."""
