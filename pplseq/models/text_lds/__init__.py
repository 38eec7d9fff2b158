"""Linear dynamical systems of words, learned from counts of pairs."""
