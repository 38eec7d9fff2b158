"""Taggers: generative (from counts, with substates, from a dictionary) and conditional (CRF, MEMM)."""
