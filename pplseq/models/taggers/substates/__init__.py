"""Taggers whose tags have several states: splitting them, their words, taggings as sums of paths, text that lacks tags."""
