"""Chains of discrete states."""
