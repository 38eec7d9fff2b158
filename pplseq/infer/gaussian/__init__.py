"""Chains of Gaussian states."""
