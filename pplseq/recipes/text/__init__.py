"""Recipes of language models: vlhmm, hmm, lstm, awd-lstm, ff, rnn, hmm-rnn."""
