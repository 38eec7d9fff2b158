"""Input-output hidden Markov models."""
