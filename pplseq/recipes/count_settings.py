"""What `pplseq count` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pplseq import checks
from pplseq.checks import setting


def shard(name: str, value: str) -> str:
    """I/N, a part of a text in N parts."""
    number, _, total = value.partition("/")
    if not (number.isascii() and number.isdigit() and total.isascii() and total.isdigit()):
        raise ValueError(f"{name}: expected i/n, such as 1/4, got {checks.shown(value)}")
    if not 1 <= int(number) <= int(total):
        raise ValueError(f"{name}: expected i/n with i from 1 to n, got {checks.shown(value)}")
    return value


@dataclass(kw_only=True)
class CountSettings:
    """What is counted.

    Args:
        max_lag: pairs of words 1 to this many places apart.
        most_lags: refuse a larger max_lag.
        vocabulary: a word a line, or a folder of counts: count these words, <unk> for others, <eos> if it is one of them.
        max_vocabulary: keep this many words, the most frequent.
        min_count: words rarer than this become <unk>.
        eos: whether <eos>, at the end of every line, is a word (default: yes).
        units: what is a word (default: words, or the vocabulary's).
        unit: pairs within a line, or within an article (= Title = between blank lines).
        lower: lower-case the text.
        digits: a word, such as NUM, in the place of every run of digits.
        shard: I/N, count one part of N only; join with count-merge.
        cluster: count on the workers of a Dask cluster: tcp://HOST:PORT, or local:N for N processes.
        part_bytes: bytes of a part, on a cluster (default: 64 MB).
        force: replace counts that are there already.
    """

    max_lag: int = setting(..., check=checks.count)
    most_lags: int = setting(1000, check=checks.count)
    vocabulary: Path | None = None
    max_vocabulary: int | None = setting(None, check=checks.count)
    min_count: int | None = setting(None, check=checks.count)
    eos: bool | None = None
    units: Literal["words", "characters", "bytes"] | None = None
    unit: Literal["line", "article"] = "line"
    lower: bool | None = None
    digits: str | None = None
    shard: str | None = setting(None, check=shard)
    cluster: str | None = None
    part_bytes: int | None = setting(None, check=checks.count)
    force: bool = setting(False, flag="--force")

    def __post_init__(self) -> None:
        fixed = ("max_vocabulary", "min_count", "eos")
        if self.vocabulary is not None and (other := next((n for n in fixed if getattr(self, n) is not None), None)):
            raise ValueError(f"vocabulary and {other} exclude each other: the file says which words there are")
        if self.cluster is not None and self.shard is not None:
            raise ValueError("cluster and shard exclude each other: a cluster counts all parts, and adds them up")
        if self.cluster is None and self.part_bytes is not None:
            raise ValueError("part_bytes is of parts on a cluster; name one")
