"""Hidden Markov models whose states are regressions on inputs and on the steps before."""
