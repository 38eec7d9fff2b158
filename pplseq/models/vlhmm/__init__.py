"""The very large hidden Markov language model: thousands of states, each with a block of words of its own."""
