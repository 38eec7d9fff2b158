"""Twice 28 regular languages, learned from 200 strings each: EM, RPNI, state merging, and the learner as it comes.

    python scripts/reproduce/languages.py                      # the development set
    python scripts/reproduce/languages.py --part held_out      # never used for choices: run once what was decided on
    python scripts/reproduce/languages.py --part random        # random automata of up to 50 states

Both sets were written before anything was tuned. A language is a regular expression, or counters and factors joined (`and`,
`or`, `xor`). Its strings: 200 different ones, lengths uniform from 0 to 12 (to 20 where there are too few), half of each class
where the class has that many, from a seed of its own. A method is right if its automaton has the language, exactly. Nothing
else is told to any method; `--num-strings 30` asks the same of few strings.

Part `random`: as in the Abbadingo competition, automata with transitions and labels drawn uniformly, of 5/4 as many states as
are wanted, of which those within a twelfth are kept, and different strings of uniform length up to 2 log2 Z + 5. Beside
"right", the share of 2,000 further strings that are labelled right. Where an automaton that is no larger than the language's
labels all strings right, the strings do not tell the two apart, and "right" is luck.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts" / "bench"), str(ROOT / "examples")]
from record import record  # noqa: E402

MAX_LENGTH = 12

# (symbols, definition); a definition is a regular expression, or (how, definition, definition), ("count", symbol, modulus,
# remainders), ("has", word), ("ends", word)
DEVELOPMENT = {
    "even a": ("ab", ("count", "a", 2, {0})),
    "a divisible by 3": ("ab", ("count", "a", 3, {0})),
    "a is 1 modulo 4": ("ab", ("count", "a", 4, {1})),
    "a divisible by 5": ("ab", ("count", "a", 5, {0})),
    "a divisible by 7": ("ab", ("count", "a", 7, {0})),
    "even a, odd b": ("ab", ("and", ("count", "a", 2, {0}), ("count", "b", 2, {1}))),
    "a by 3 and even b": ("ab", ("and", ("count", "a", 3, {0}), ("count", "b", 2, {0}))),
    "a by 2 or b by 3": ("ab", ("or", ("count", "a", 2, {0}), ("count", "b", 3, {0}))),
    "aba within": ("ab", ("has", "aba")),
    "no aabb": ("ab", ("not", ("has", "aabb"))),
    "ends in abb": ("ab", ("ends", "abb")),
    "(ab)*": ("ab", "(ab)*"),
    "a*b*a*": ("ab", "a*b*a*"),
    "third from the end is a": ("ab", "[ab]*a[ab][ab]"),
    "third is b": ("ab", "[ab][ab]b[ab]*"),
    "length divisible by 6": ("ab", "([ab]{6})*"),
    "begins as it ends": ("ab", "a|b|a[ab]*a|b[ab]*b"),
    "ab or ba repeated": ("ab", "(ab|ba)*"),
    "aa and bb within": ("ab", ("and", ("has", "aa"), ("has", "bb"))),
    "runs of a even": ("ab", "(aa|b)*"),
    "even a within three symbols": ("abc", ("count", "a", 2, {0})),
    "a before c": ("abc", "[ab]*c*"),
    "abc within": ("abc", ("has", "abc")),
    "a then b, c anywhere": ("abc", "(c*ac*b)*c*"),
    "no two alike": ("abc", ("not", ("or", ("has", "aa"), ("or", ("has", "bb"), ("has", "cc"))))),
    "at most three b": ("ab", "a*(ba*){0,3}"),
    "even a xor ends in b": ("ab", ("xor", ("count", "a", 2, {0}), ("ends", "b"))),
    "binary by 5": ("01", "binary 5"),
}
HELD_OUT = {
    "odd b": ("ab", ("count", "b", 2, {1})),
    "b is 2 modulo 3": ("ab", ("count", "b", 3, {2})),
    "b divisible by 4": ("ab", ("count", "b", 4, {0})),
    "b is 3 modulo 5": ("ab", ("count", "b", 5, {3})),
    "b is 0 or 3 modulo 7": ("ab", ("count", "b", 7, {0, 3})),
    "odd a, odd b": ("ab", ("and", ("count", "a", 2, {1}), ("count", "b", 2, {1}))),
    "odd a or b by 4": ("ab", ("or", ("count", "a", 2, {1}), ("count", "b", 4, {0}))),
    "a by 3 xor even b": ("ab", ("xor", ("count", "a", 3, {0}), ("count", "b", 2, {0}))),
    "bbab within": ("ab", ("has", "bbab")),
    "no bab": ("ab", ("not", ("has", "bab"))),
    "ends in baab": ("ab", ("ends", "baab")),
    "(aab)*": ("ab", "(aab)*"),
    "b*a*b*a*": ("ab", "b*a*b*a*"),
    "second from the end is b": ("ab", "[ab]*b[ab]"),
    "fourth is a": ("ab", "[ab]{3}a[ab]*"),
    "length is 2 modulo 5": ("ab", "[ab]{2}([ab]{5})*"),
    "begins with ab and ends in ba": ("ab", "aba|ab[ab]*ba"),
    "aab or b repeated": ("ab", "(aab|b)*"),
    "aba or bab within": ("ab", ("or", ("has", "aba"), ("has", "bab"))),
    "runs of b by 3": ("ab", "(bbb|a)*"),
    "c by 3 within three symbols": ("abc", ("count", "c", 3, {0})),
    "a*b*c*": ("abc", "a*b*c*"),
    "acb within": ("abc", ("has", "acb")),
    "every a followed by b": ("abc", "(ab|b|c)*"),
    "no c after a": ("abc", "[bc]*(a[ab]*)?"),
    "three to five a": ("ab", "b*(ab*){3,5}"),
    "b by 3 xor ends in a": ("ab", ("xor", ("count", "b", 3, {0}), ("ends", "a"))),
    "binary by 6": ("01", "binary 6"),
}
SETS = {"development": DEVELOPMENT, "held_out": HELD_OUT}


def automaton_of(symbols: str, definition):
    """The smallest automaton of a language."""
    from pplseq.models.automata.automaton import Automaton

    if isinstance(definition, str) and definition.startswith("binary "):
        modulus = int(definition.split()[1])
        moves = [[2 * value % modulus, (2 * value + 1) % modulus] for value in range(modulus)]
        return Automaton(tuple(symbols), np.array(moves), np.array([1] + [0] * (modulus - 1)))
    if isinstance(definition, str):
        return Automaton.from_regex(definition, symbols)
    how, *parts = definition
    if how == "count":
        symbol, modulus, remainders = parts
        moves = [[(value + (own == symbol)) % modulus for own in symbols] for value in range(modulus)]
        return Automaton(tuple(symbols), np.array(moves), np.array([int(v in remainders) for v in range(modulus)]))
    if how in ("has", "ends"):
        any_symbol = f"[{symbols}]*"
        return Automaton.from_regex(any_symbol + parts[0] + (any_symbol if how == "has" else ""), symbols)
    operands = [automaton_of(symbols, part) for part in parts]
    if how == "not":
        (one,) = operands
        return Automaton(one.symbols, one.transitions, 1 - one.outputs, one.start)
    one, two = operands
    join = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[how]
    moves = (one.transitions[:, None] * two.num_states + two.transitions[None]).reshape(-1, len(symbols))
    outputs = join(one.outputs[:, None], two.outputs[None]).reshape(-1).astype(int)
    return Automaton(one.symbols, moves, outputs, one.start * two.num_states + two.start).minimise()


def draw_strings(automaton, number: int, seed: int) -> tuple[list[str], list[bool]]:
    """Different strings and their labels, as the module's text says."""
    generator = random.Random(seed)
    # ways[label][n][state]: strings of n symbols from a state to one of the label
    size = automaton.num_states
    ways = [[[int(output == label) for output in automaton.outputs]] for label in (0, 1)]
    for counts in ways:
        for _ in range(MAX_LENGTH + 8):
            counts.append([sum(counts[-1][to] for to in automaton.transitions[state]) for state in range(size)])
    found: dict[str, bool] = {}
    for label in (1, 0):
        wanted = number // 2 if label else number
        longest = MAX_LENGTH
        for attempt in range(40 * number):
            if len(found) >= wanted:
                break
            longest = MAX_LENGTH + 8 * (attempt > 20 * number)
            length = generator.randint(0, longest)
            state, string = automaton.start, ""
            if not ways[label][length][state]:
                continue
            for left in range(length - 1, -1, -1):
                weights = [ways[label][left][to] for to in automaton.transitions[state]]
                (place,) = generator.choices(range(len(weights)), weights)
                string, state = string + automaton.symbols[place], automaton.transitions[state][place]
            found[string] = bool(label)
    return list(found), list(found.values())


RANDOM = ((15, 600), (30, 2000), (50, 2500), (50, 4000), (50, 6000), (50, 10_000))  # states, strings


def random_automata(draws: int):
    """Name, automaton, strings and labels of each."""
    from pplseq.models.automata.automaton import Automaton

    for (states, number), draw in itertools.product(RANDOM, range(draws)):
        generator = np.random.default_rng([states, number, draw])
        size = states * 5 // 4
        while True:
            moves, outputs = generator.integers(size, size=(size, 2)), generator.integers(2, size=size)
            language = Automaton(("0", "1"), moves, outputs).minimise()
            if abs(language.num_states - states) <= max(1, states // 12):
                break
        longest, found = int(2 * np.log2(states) + 5), {}
        while len(found) < number:
            found.setdefault("".join(map(str, generator.integers(2, size=generator.integers(longest + 1)))))
        strings = list(found)
        yield f"{states} states, {number} strings", language, strings, [language.accepts(string) for string in strings]


def fixed_languages(part: str, number: int, draws: int, only):
    """The same of a set."""
    for place, (name, (symbols, definition)) in enumerate(SETS[part].items()):
        language = automaton_of(symbols, definition).minimise()
        for draw in range(draws):
            if not only or name in only:
                yield name, language, *draw_strings(language, number, seed=1000 * draw + place)


def methods(names):
    """What learns an automaton from strings and labels, by name."""
    from rpni import rpni

    from pplseq.models.automata.learner import AutomatonLearner
    from pplseq.models.automata.state_merging import merge_states

    em, learner = AutomatonLearner(merging=False), AutomatonLearner()
    return {
        name: {
            "EM": lambda strings, labels, symbols: em.fit(strings, labels, symbols=symbols).automaton,
            "RPNI": lambda strings, labels, symbols: rpni(strings, labels, symbols=symbols),
            "EDSM": lambda strings, labels, symbols: merge_states(strings, labels, symbols=symbols),
            "learner": lambda strings, labels, symbols: learner.fit(strings, labels, symbols=symbols).automaton,
        }[name]
        for name in names
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=[*SETS, "random"], default="development")
    parser.add_argument("--methods", nargs="+", default=["EM", "RPNI", "EDSM", "learner"])
    parser.add_argument("--num-strings", type=int, default=200)
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--only", nargs="+", help="names of languages")
    parser.add_argument("--name", default="languages", help="of the file in results")
    options = parser.parse_args()

    import torch

    torch.set_num_threads(1)
    path = ROOT / "results" / f"{options.name}.json"
    results = json.loads(path.read_text())["results"] if path.is_file() else {}
    learners = methods(options.methods)
    warm = ["", "a", "b", "ab"]
    for learn in learners.values():
        learn(warm, [True, False, False, True], "ab")
    rows = {}
    if options.part == "random":
        languages = random_automata(options.draws)
    else:
        languages = fixed_languages(options.part, options.num_strings, options.draws, options.only)
    for name, language, strings, labels in languages:
        row = rows.setdefault(name, {"states": []} | {method: [] for method in learners})
        row["states"].append(language.num_states)
        for method, learn in learners.items():
            started = time.process_time()
            learnt = learn(strings, labels, language.symbols)
            seconds = time.process_time() - started
            entry = {"right": learnt.equals(language), "states": learnt.num_states, "processor_s": round(seconds, 4)}
            if options.part == "random":
                generator = np.random.default_rng(len(row[method]))
                longest = max(map(len, strings))
                tests = ["".join(map(str, generator.integers(2, size=generator.integers(longest + 1)))) for _ in range(2000)]
                entry["accuracy"] = float(np.mean([learnt.accepts(test) == language.accepts(test) for test in tests]))
            row[method].append(entry)
        cells = [f"{m}: {'+' if row[m][-1]['right'] else '-'}{row[m][-1]['states']}" for m in learners]
        print(f"{name} ({language.num_states}, {len(strings)} strings)", *cells, flush=True)
    summary = {
        method: {
            "right": sum(entry["right"] for row in rows.values() for entry in row[method]),
            "of": sum(len(row[method]) for row in rows.values()),
            "processor_s": round(sum(entry["processor_s"] for row in rows.values() for entry in row[method]), 3),
            "processor_s_most": max(entry["processor_s"] for row in rows.values() for entry in row[method]),
            "processor_s_median": float(np.median([e["processor_s"] for row in rows.values() for e in row[method]])),
        }
        for method in learners
    }
    print(json.dumps(summary, indent=1))
    if not options.only:
        key = "random" if options.part == "random" else f"{options.part}, {options.num_strings} strings"
        load = os.getloadavg()[0]
        # a sign and the number of states of each run
        def signs(entries):
            return [f"{'+' if entry['right'] else '-'}{entry['states']}" for entry in entries]

        short = {
            name: {"states": row["states"]} | {method: signs(row[method]) for method in learners}
            for name, row in rows.items()
        }
        if options.part == "random":
            for method in learners:
                summary[method]["accuracy"] = [e["accuracy"] for row in rows.values() for e in row[method]]
        results[key] = {"summary": summary, "languages": short, "draws": options.draws, "load": load}
        record(options.name, results, folder=".", protocol="see the script's text")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
