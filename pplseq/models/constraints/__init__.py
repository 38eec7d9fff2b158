"""Constraints on texts: automata over words, from phrases, regular expressions and lengths."""
