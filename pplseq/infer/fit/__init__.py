"""Learning for any model: EM, gradients, SVI, NUTS."""
