"""What can be asked about a tagged sentence; also as options of `pplseq tag run`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from pplseq import checks

SO_MANY = partial(checks.count, least=0)


@dataclass(frozen=True, kw_only=True)
class TagQuestions:
    """What is told of every sentence beside its tags.

    Args:
        probabilities: p(tag | words) of every tag.
        top: as many alternatives of every word, with probabilities (JSON).
        num_paths: as many of the most probable taggings (JSON).
        num_samples: as many taggings drawn from the posterior (JSON).
        seed: of the draws.
        entropy: of the taggings given the words, nats (JSON).
        log_prob: log p(words), nats, of generative taggers (JSON).
        surprising: -log p(word | words before) of every word, nats, and which words are the most surprising (JSON).
        decoder: the most probable tagging, or of every word the most probable tag (default: the system's).
    """

    probabilities: bool = checks.setting(False, flag="--probabilities")
    top: int = checks.setting(0, check=SO_MANY)
    num_paths: int = checks.setting(0, check=SO_MANY)
    num_samples: int = checks.setting(0, check=SO_MANY)
    seed: int = 0
    entropy: bool = checks.setting(False, flag="--entropy")
    log_prob: bool = checks.setting(False, flag="--log-prob")
    surprising: bool = checks.setting(False, flag="--surprising")
    decoder: Literal["viterbi", "posterior"] | None = None

    @property
    def beyond_tags(self) -> bool:
        """Whether anything is asked that a file of tags has no place for."""
        return bool(self.top or self.num_paths or self.num_samples or self.entropy or self.log_prob or self.surprising)
