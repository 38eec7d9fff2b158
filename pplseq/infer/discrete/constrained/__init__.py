"""Exact constraints: the product of a chain of any family with an automaton over words, never formed as a matrix."""
