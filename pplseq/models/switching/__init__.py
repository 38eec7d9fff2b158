"""Regressions and autoregressions whose coefficients switch with a Markov chain."""
