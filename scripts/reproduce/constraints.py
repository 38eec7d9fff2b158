"""A frozen LSTM on the Penn Treebank, steered by an HMM that knows only its samples, to say sentences with two given words.

    pplseq train lstm $PPLSEQ_DATA/ptb --max-vocabulary 3000 --hidden-size 128 --num-layers 1 --dropout 0.1 --lr 0.004 \\
        --schedule time --max-time 660s --validate-per-epoch 8 --out runs/lstm
    python scripts/reproduce/constraints.py --lstm runs/lstm

Each task is two words of one sentence of the test text (each 20 to 2,000 times in the training text): say a sentence of 8 to 20
words that has both. Ways to do it:

    steered      the LSTM's next words, weighed by p_hmm(constraint | text, next word), one draw
    hmm          the HMM alone under the constraint, one draw
    rejection    draws of the LSTM until one does, up to a number
    beam         the best sentences of the LSTM by beam search; the best of them that does

Satisfied: the share of tasks with such a sentence. Perplexity: under the LSTM, of the sentences that do, with their <eos>.
Seconds: of the processor, one thread, for each token of the sentence that is answered; tables and discarded draws are counted.
The HMM is distilled from samples of the LSTM, drawn here. Nothing is tuned.

Source: H. Zhang et al., Adaptable logical control for large language models (2024).
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time
from functools import partial
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "bench"))
from record import record  # noqa: E402

from pplseq import VLHMM, Constraint, load, load_corpus  # noqa: E402
from pplseq.data.text import Text  # noqa: E402
from pplseq.sources import ConstraintProcessor  # noqa: E402

SHORTEST, LONGEST = 8, 20


class Network:
    """The LSTM from the beginning of a text, a word at a time."""

    def __init__(self, model) -> None:
        self.model, self.eos = model.eval(), model.eos_id

    @torch.no_grad()
    def begin(self, rows: int):
        """(log p(first word) (B, V), state)"""
        return self.go_on(torch.full((rows,), self.eos), self.model.initial_state(rows))

    @torch.no_grad()
    def go_on(self, words, state):
        features, state = self.model(words.unsqueeze(1), state)
        return torch.log_softmax(self.model.logits(features[:, 0]), -1), state

    def draw(self, rows: int, longest: int, processor: ConstraintProcessor | None = None) -> list[list[int]]:
        """Sentences with their <eos>; those without one within ``longest`` words end there."""
        log_probs, state = self.begin(rows)
        ids = torch.zeros(rows, 0, dtype=torch.long)
        done = torch.zeros(rows, dtype=torch.bool)
        for _ in range(longest + 1):
            scores = log_probs if processor is None else processor(ids, log_probs)
            words = torch.distributions.Categorical(logits=scores).sample().masked_fill(done, self.eos)
            ids = torch.cat([ids, words.unsqueeze(1)], 1)
            done |= words == self.eos
            if bool(done.all()):
                break
            log_probs, state = self.go_on(words, state)
        return [self.cut(row) for row in ids.tolist()]

    def cut(self, row: list[int]) -> list[int]:
        return row[: row.index(self.eos) + 1] if self.eos in row else row

    def beam(self, width: int, longest: int) -> list[list[int]]:
        """The best sentences by log p, of ``width`` beginnings kept at each word, the best first."""
        log_probs, state = self.begin(1)
        beams, score, whole = [[]], torch.zeros(1), []
        for _ in range(longest + 1):
            total = (score.unsqueeze(-1) + log_probs).flatten()
            best = total.topk(2 * width)
            parents, kept = [], []
            for value, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                parent, word = divmod(place, log_probs.shape[-1])
                text = [*beams[parent], word]
                if word == self.eos:
                    whole.append((value, text))
                elif len(kept) < width:
                    parents.append(parent)
                    kept.append((value, text))
            beams, score = [text for _, text in kept], torch.tensor([value for value, _ in kept])
            state = tuple(part[parents] for part in state)
            log_probs, state = self.go_on(torch.tensor([text[-1] for text in beams]), state)
        return [text for _, text in sorted(whole, reverse=True)]

    def nats(self, text: list[int]) -> float:
        """-log p of a sentence with its <eos>."""
        return -float(self.model.posterior(torch.tensor([text])).log_prob()[0])


def tasks_of(corpus, number: int) -> list[tuple[str, str]]:
    """Two words of a sentence of the test text each."""
    draw = random.Random(0)
    words = corpus.vocabulary.words
    counts = torch.bincount(torch.from_numpy(corpus.train.tokens.astype("int64")), minlength=len(words))
    usual = {n for n in range(len(words)) if 20 <= counts[n] <= 2000 and words[n].isalpha()}
    lines = torch.from_numpy(corpus.test.tokens.astype("int64")).tolist()
    sentences, now = [], []
    for word in lines:
        now.append(word)
        if word == corpus.vocabulary.eos_id:
            sentences, now = [*sentences, now], []
    draw.shuffle(sentences)
    found = []
    for sentence in sentences:
        some = sorted(set(sentence) & usual)
        if SHORTEST < len(sentence) <= LONGEST + 1 and len(some) >= 2:
            found.append(tuple(words[n] for n in draw.sample(some, 2)))
        if len(found) == number:
            return found
    return found


def distilled(network: Network, vocabulary, options) -> tuple[VLHMM, dict]:
    """An HMM of the LSTM's samples."""
    torch.manual_seed(0)
    lines = []
    began = time.process_time()
    while len(lines) < options.samples:
        lines += network.draw(500, 40)
    ended = [vocabulary.decode(row[:-1]) for row in lines if row[-1] == network.eos and len(row) > 1]
    drawn = time.process_time() - began
    held_out = len(ended) // 20
    train, valid = (Text.from_lines(part, vocabulary) for part in (ended[held_out:], ended[:held_out]))
    began = time.process_time()
    model = VLHMM(num_states=options.states, hidden_size=64)
    model.fit(train, validation=valid, num_blocks=options.blocks, max_time=options.seconds, seed=0)
    perplexity = math.exp(-model.score(valid, per_token=True))
    return model, {
        "states": options.states, "blocks": options.blocks, "samples": len(ended), "sample_tokens": len(train.tokens),
        "drawing_processor_seconds": round(drawn, 1), "training_processor_seconds": round(time.process_time() - began, 1),
        "perplexity_of_held_out_samples": round(perplexity, 1),
    }  # fmt: skip


def satisfies(vocabulary, constraint: Constraint, text: list[int]) -> bool:
    """Whether a sentence ends, within the bounds, and has what it should."""
    words = vocabulary.decode(text)
    return words[-1] == vocabulary.eos and SHORTEST < len(words) <= LONGEST + 1 and constraint.accepts(words[:-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lstm", type=Path, required=True, help="a run of pplseq train lstm on ptb")
    parser.add_argument("--data", default=os.path.join(os.environ.get("PPLSEQ_DATA", ""), "ptb"))
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--states", type=int, default=1024)
    parser.add_argument("--blocks", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=180, help="of the HMM's training")
    parser.add_argument("--draws", type=int, default=200, help="of rejection sampling, at most")
    parser.add_argument("--beams", type=int, default=32)
    parser.add_argument("--name", default="constraints")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lstm = load(options.lstm)
    network, vocabulary = Network(lstm), lstm.vocabulary
    corpus = load_corpus(options.data, vocabulary=vocabulary)
    model, about = distilled(network, vocabulary, options)
    print(about, flush=True)
    tasks = tasks_of(corpus, options.tasks)
    rows: dict[str, list[tuple[list[int] | None, float]]] = {way: [] for way in ("steered", "hmm", "rejection", "beam")}
    constraint_log_probs = []
    began = time.process_time()
    beams = network.beam(options.beams, LONGEST)
    beam_seconds = time.process_time() - began  # of one search, which each task would take anew
    torch.manual_seed(1)
    for pair in tasks:
        constraint = Constraint.containing(*pair) & Constraint.excluding("<unk>")

        does = partial(satisfies, vocabulary, constraint)
        began = time.process_time()
        chain = model.constrained(constraint, length=(SHORTEST, LONGEST))
        (text,) = network.draw(1, LONGEST, ConstraintProcessor(chain))
        rows["steered"].append((text if does(text) else None, time.process_time() - began))
        constraint_log_probs.append(float(chain.log_prob()[0]))
        began = time.process_time()
        chain = model.constrained(constraint, length=(SHORTEST, LONGEST))
        drawn = chain.sample(1)
        text = drawn.words[0, 0, : int(drawn.lengths[0, 0])].tolist()
        rows["hmm"].append((text if does(text) else None, time.process_time() - began))
        began = time.process_time()
        right = [text for text in network.draw(options.draws, LONGEST) if does(text)]
        rows["rejection"].append((right[0] if right else None, time.process_time() - began))
        rows["beam"].append((next((text for text in beams if does(text)), None), beam_seconds))
    results = {}
    for way, found in rows.items():
        texts = [text for text, _ in found if text is not None]
        tokens, seconds = sum(map(len, texts)), sum(seconds for _, seconds in found)
        results[way] = {
            "satisfied": len(texts) / len(found),
            "perplexity": round(math.exp(sum(map(network.nats, texts)) / tokens), 1) if texts else None,
            "processor_seconds_a_token": round(seconds / tokens, 4) if texts else None,
            "processor_seconds_a_task": round(seconds / len(found), 4),
        }
        print(way, results[way], flush=True)
    free = [text for text in network.draw(500, LONGEST) if text[-1] == network.eos and len(text) > SHORTEST]
    total = sum(map(network.nats, free)) / sum(map(len, free))
    settings = {name: getattr(options, name) for name in ("tasks", "draws", "beams")} | {"length": [SHORTEST, LONGEST]}
    record(
        options.name, results, folder=".", settings=settings, distilled=about,
        lstm_test_perplexity=round(lstm.perplexity(corpus.test), 1),
        perplexity_of_free_samples_of_that_length=round(math.exp(total), 1),
        mean_hmm_log_prob_of_constraint=round(sum(constraint_log_probs) / len(constraint_log_probs), 2),
    )  # fmt: skip


if __name__ == "__main__":
    main()
