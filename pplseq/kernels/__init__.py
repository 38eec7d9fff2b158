"""Arithmetic on tensors: scans, recursions, matrix equations. Knows torch and numpy alone."""
