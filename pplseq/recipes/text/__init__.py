"""Recipes of language models: vlhmm, hmm, lstm, ff, rnn."""
