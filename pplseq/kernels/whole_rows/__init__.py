"""Rows of an HMM that are full and have no gaps, from tables to likelihood and expected counts in one compiled call."""
