"""Deterministic automata, read off input-output HMMs and learned from labelled strings."""
