"""A chat of many users, each with a model of their own words; who is away is kept on the disk.

    python examples/chat.py general.txt users/ < chat.txt

Every line is "name: what they said". The answer is what the line was worth to that user's own model, and the words that are
most likely to come next. With ten thousand users only those who spoke last are in memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from pplseq.sources import PersonalStreams


def answers(streams: PersonalStreams, lines: Iterable[str], offered: int = 3) -> Iterator[tuple[str, float, list[str]]]:
    """(user, log p(line) before it was learned, words that may come next) of each line."""
    for line in lines:
        name, colon, said = line.partition(":")
        if colon and name.strip() and said.strip():
            stream = streams[name.strip()]
            log_prob = stream.read(said.strip()).log_prob
            yield name.strip(), log_prob, [suggestion.word for suggestion in stream.suggest("", offered)]


def main() -> None:
    general, folder = sys.argv[1:]
    with PersonalStreams(f"ngram:{general}", folder, most_open=200, by_line=True) as streams:
        for name, log_prob, words in answers(streams, sys.stdin):
            print(f"{name}: {log_prob:.1f} nats; next: {', '.join(words)}")


if __name__ == "__main__":
    main()
