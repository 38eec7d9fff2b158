"""Raw text: where tokens, words and sentences begin, learned from a treebank, and scores as CoNLL 2018 defines them."""
