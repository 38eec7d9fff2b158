"""Linear dynamical systems of vectors."""
