"""Chains whose moves depend on more than the last state: on the last two, or on as many as a context holds."""
