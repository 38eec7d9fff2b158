"""Linear dynamical systems whose matrices switch, by approximation."""
