"""Hidden Markov models with one dense transition matrix."""
