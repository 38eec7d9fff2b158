#!/usr/bin/env python
"""Ask a trained model about a sentence: exact posteriors over 2^10 or 2^15 states, in a few lines.

    python scripts/query_posterior.py runs/example/best "the value of the _ is an object ."

`_` stands for a word that was not seen. The command `pplseq query` answers the same questions for files of lines.
"""

import sys

from pplseq import load


def main(folder: str, sentence: str) -> None:
    model = load(folder)
    vocabulary, clusters = model.vocabulary, model.clusters
    words = [*sentence.split(), vocabulary.eos]

    # One exact forward-backward pass answers everything below; it is about one row of words.
    chain = model.posterior([[None if word == "_" else word for word in words]])
    print(f"log p(words) = {chain.log_prob().item():.3f} nats")

    # p(z_t | all words): the three most probable states at each word.
    smoothed = chain.marginals().dense(model.num_states)[0]  # (T, Z)
    for word, probs in zip(words, smoothed, strict=True):
        top = probs.topk(3)
        print(f"  {word:<16}", *(f"state {z} ({p:.1%})" for p, z in zip(top.values, top.indices.tolist(), strict=True)))

    # The most probable path, and paths drawn from the posterior.
    path, log_prob = chain.viterbi()
    print("most probable path:", path[0].tolist(), f"with log p(path, words) = {log_prob.item():.3f}")
    for sample in chain.sample(3)[:, 0].tolist():
        print("a draw:            ", sample)

    # p(x_t | the other words) at the gaps.
    if "_" in words:
        gaps = chain.missing_words()
        for (_, t), log_probs in zip(gaps.places.tolist(), gaps.log_probs, strict=True):
            top = log_probs.exp().topk(5)
            guesses = zip(vocabulary.decode(top.indices.tolist()), top.values, strict=True)
            print(f"word {t + 1} could be:", ", ".join(f"{word} ({p:.1%})" for word, p in guesses))

    # The words of the same block as the first one: what the clustering found alike.
    if clusters is not None and words[0] != "_":
        block = clusters.block_of_word[int(vocabulary.encode([words[0]])[0])]
        alike = (clusters.block_of_word == block).nonzero()[0]
        print(f"in one block with {words[0]!r}:", " ".join(vocabulary.decode(alike[:12])))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
