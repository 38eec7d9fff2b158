"""Bits a character on books of Project Gutenberg, at equal processor time: dense HMMs, products of moves, n-grams, words.

    OMP_NUM_THREADS=1 python scripts/reproduce/characters.py --minutes 60

Text is made as text8 is: lower case, digits spelled out, everything but a to z one space. It is cut into lines of whole words
of up to 256 characters; a line's end is a symbol, which every model foretells and which counts as one character, and every line
is scored on its own. HMMs of characters learn by stepwise EM; a product starts from two dense HMMs that had half of the time.
The HMM over words spells words that it does not know by the n-gram of characters. Books stand in $PPLSEQ_DATA, else in
../shared/data, folder gutenberg. With --write a run that was stopped goes on behind the models whose figures are there.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import torch
from record import ROOT, data_folder, peak_gigabytes, record

from pplseq import HMM, VLHMM, Vocabulary
from pplseq.baselines import KneserNey
from pplseq.data.text import Text
from pplseq.infer.fit.em import Batch, StepSize, expectation

DIGITS = "zero one two three four five six seven eight nine".split()
CHARACTERS = Vocabulary(("<eos>", "␠", *"abcdefghijklmnopqrstuvwxyz"), unknown=None, units="characters")
LINE = 256
MODELS = {
    "dense 512": 512, "dense 1024": 1024, "product 2^14": (128, 128), "product 2^16": (256, 256),
    "kneser-ney of 8 characters": None, "vlhmm of words": None,
}  # fmt: skip


def cleaned(text: str) -> list[str]:
    """Words as text8 has them."""
    for digit, name in enumerate(DIGITS):
        text = text.replace(str(digit), f" {name} ")
    return re.sub("[^a-z]+", " ", text.lower()).split()


def lines_of(words: list[str]) -> list[list[str]]:
    """Of whole words, up to LINE characters with the end; longer words are left out."""
    lines: list[list[str]] = [[]]
    size = 0
    for word in words:
        if len(word) >= LINE:
            continue
        if size + len(word) + 1 > LINE:
            lines.append([])
            size = 0
        lines[-1].append(word)
        size += len(word) + 1
    return lines


def read(characters: int, held_out: int) -> tuple[list[list[str]], list[list[str]]]:
    folder = data_folder() / "gutenberg"
    with lzma.open(folder / "gutenberg.train.txt.xz", "rt", encoding="utf-8") as file:
        train = cleaned(file.read(characters))
    return lines_of(train), lines_of(cleaned((folder / "gutenberg.valid.txt").read_text(encoding="utf-8")[:held_out]))


def coded(lines: list[list[str]]) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, LINE) ids with each line's end, and lengths (N,)."""
    rows = [CHARACTERS.encode(list("␠".join(line))).tolist() + [0] for line in lines]
    x = torch.full((len(rows), LINE), 1)
    for number, row in enumerate(rows):
        x[number, : len(row)] = torch.tensor(row)
    return x, torch.tensor([len(row) for row in rows])


def learn(
    model: HMM, x: torch.Tensor, lengths: torch.Tensor, seconds: float, rows: int, warm: bool = False, step: int = 0
) -> tuple[int, int]:
    """Stepwise EM for so much processor time, behind so many steps; how many symbols were read, and steps by now."""
    began, seen, size, total = time.process_time(), 0, StepSize(0.6, 2.0), int(lengths.sum())
    if not warm:
        model.initialize(Batch(x[:256], lengths[:256]))
    model.is_fitted = True
    average = model._implied_statistics(len(x), total)
    with torch.no_grad():
        while time.process_time() - began < seconds:
            places = torch.randint(len(x), (rows,))
            places, read, eta = places[lengths[places].argsort()], 0, size.at(step)
            share = eta * total / int(lengths[places].sum())
            average = {name: value * (1 - eta) for name, value in average.items()}
            for piece in places.split(256):
                batch = Batch(x[piece, : int(lengths[piece].max())], lengths[piece])
                for name, value in expectation(model, batch)[0].items():
                    average[name].add_(value, alpha=share)
                read += batch.num_tokens
            model.maximize(average)
            seen, step = seen + read, step + 1
    return seen, step


def bits_of(model: HMM, x: torch.Tensor, lengths: torch.Tensor, rows: int) -> float:
    nats = -sum(float(model.log_prob(x[k : k + rows], lengths[k : k + rows]).double().sum()) for k in range(0, len(x), rows))
    return nats / math.log(2) / int(lengths.sum())


def hmm(sizes: int | tuple[int, ...], data, held_out, seconds: float, cells: int) -> dict:
    """Trained and scored; cells: numbers in the messages of a batch."""
    began = time.process_time()
    torch.manual_seed(0)

    def rows(states: int) -> int:
        return max(1, min(64, cells // (states * LINE)))

    def dense(states: int, share: float) -> tuple[HMM, int]:
        model = HMM(states, num_words=len(CHARACTERS), dtype="float32", priors={"emission": 1.0001, "transition": 1.0001})
        return model, learn(model, *data, share * seconds, rows(states))[0]

    if isinstance(sizes, int):
        model, seen = dense(sizes, 1.0)
    else:
        (first, one), (second, two) = (dense(size, 0.25) for size in sizes)
        model = first.product(second)
        left = seconds - (time.process_time() - began)
        seen = one + two + learn(model, *data, left, rows(model.num_states), warm=True)[0]
    trained = time.process_time() - began
    return {
        "bits_a_character": bits_of(model, *held_out, 64), "characters_read": seen,
        "training_seconds": round(trained, 1), "parameters": model.num_free_parameters,
    }  # fmt: skip


def text_of(lines: list[list[str]], vocabulary: Vocabulary, characters: bool = False) -> Text:
    rows = (list("␠".join(line)) for line in lines) if characters else lines
    return Text.from_lines(rows, vocabulary, name="gutenberg")


def kneser_ney(train: list[list[str]], held_out: list[list[str]]) -> tuple[dict, KneserNey]:
    began = time.process_time()
    model = KneserNey(8).fit(text_of(train, CHARACTERS, True))
    trained, text = time.process_time() - began, text_of(held_out, CHARACTERS, True)
    bits = -float(model.log_prob(text).sum()) / math.log(2) / text.num_tokens
    return {"bits_a_character": bits, "training_seconds": round(trained, 1), "ngrams": sum(model.num_ngrams)}, model


def words(train: list[list[str]], held_out: list[list[str]], num_characters: int, seconds: float, spelling: KneserNey) -> dict:
    began = time.process_time()
    vocabulary = Vocabulary.build(train, min_count=5)
    model = VLHMM(4096).fit(text_of(train, vocabulary), max_time=seconds, seed=0)
    trained = time.process_time() - began
    known = model.vocabulary
    nats = -model.score(text_of(held_out, known))
    unknown = [word for line in held_out for word in line if word not in known]
    spelled = text_of([[word] for word in unknown], CHARACTERS, True)
    nats -= float(spelling.log_prob(spelled).sum()) if unknown else 0.0
    return {
        "bits_a_character": nats / math.log(2) / num_characters, "training_seconds": round(trained, 1), "words": len(known),
        "spelled": len(unknown), "parameters": model.num_free_parameters,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="of processor time to learn, for each model")
    parser.add_argument("--characters", type=int, default=20_000_000, help="of the training text before it is cleaned")
    parser.add_argument("--held-out", type=int, default=500_000)
    parser.add_argument("--cells", type=int, default=1 << 26, help="numbers in the messages of a batch")
    parser.add_argument("--only", nargs="*", choices=MODELS, default=[*MODELS])
    parser.add_argument("--write", action="store_true", help="to results/characters.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    train, held_out = read(options.characters, options.held_out)
    x, y = coded(train), coded(held_out)
    num_characters, spelling = int(y[1].sum()), None
    settings = {"minutes": options.minutes, "characters": int(x[1].sum()), "held_out": num_characters}
    there = ROOT / "results" / "characters.json"
    before = json.loads(there.read_text()) if options.write and there.exists() else {}
    results = before["results"] if all(before.get(name) == value for name, value in settings.items()) and before else {}
    print(f"{int(x[1].sum()):,} characters to learn from, {num_characters:,} to score", flush=True)
    for name in options.only:
        if name in results:
            continue
        if (sizes := MODELS[name]) is not None:
            results[name] = hmm(sizes, x, y, 60 * options.minutes, options.cells)
        elif name.startswith("kneser"):
            results[name], spelling = kneser_ney(train, held_out)
        else:
            spelling = kneser_ney(train, held_out)[1] if spelling is None else spelling
            results[name] = words(train, held_out, num_characters, 60 * options.minutes, spelling)
        print(name, results[name], flush=True)
        if options.write:
            record("characters", results, folder=".", peak_gb=peak_gigabytes(), **settings)


if __name__ == "__main__":
    main()
