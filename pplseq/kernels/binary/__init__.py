"""Kernels for observations of zeros and ones."""
