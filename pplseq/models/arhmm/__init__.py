"""Hidden Markov models whose states are vector autoregressions."""
