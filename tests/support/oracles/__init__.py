"""Slow truths that tests compare with."""
