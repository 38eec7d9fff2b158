"""Kernels that are parallel in time."""
