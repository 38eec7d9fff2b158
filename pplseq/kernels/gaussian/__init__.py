"""Means and covariances of Gaussian chains: loops over time, compiled, and their twins."""
