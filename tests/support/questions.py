"""Every question that can be asked of every model, as calls without arguments, and their answers as texts to the last bit."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pplseq.distributions.drawing import seeded
from pplseq.models import HMM, IOHMM, LDS, VLHMM, CRFTagger, HMMTagger, LatentTagger, MEMMTagger
from support.model_cases import ARGUMENTS, CASES, FITTED, NUMBERS, Case, vectors, words
from support.tagged_toy import tagged_sentences

Questions = dict[str, Callable[[], Any]]
LENGTHS = torch.tensor([6, 3, 4, 6])
EVEN = torch.full((4, 6, 2, 6), 1 / 6).double().log()  # what sources say of all words
MORE = {  # what takes other ways than the cases of all contracts
    "hmm, priors": Case(lambda: HMM(3, 6, priors=True)),
    "hmm, families": Case(lambda: HMM(2, emission=["student_t", "Laplace"]), vectors),
    "iohmm, feedback": Case(lambda: IOHMM(2, num_inputs=2, outputs="gaussian", num_outputs=2, feedback=True), vectors, NUMBERS),
}
TAGGERS = {"hmm": HMMTagger, "crf": CRFTagger, "memm": MEMMTagger, "latent": LatentTagger}


def of_case(case: Case) -> tuple[Any, Questions]:
    """A model that knows its parameters, and what it is asked."""
    model, x, known = case.model(), case.data(), case.part()
    model.is_fitted = True
    drawn = {name: EVEN if name == "source_log_probs" else value for name, value in known.items()}
    inputs = known.get("inputs")
    ahead: dict[str, Any] = {} if inputs is None else {"future_inputs": inputs[:, :3]}
    found: Questions = {
        name: lambda name=name: getattr(model, name)(x, LENGTHS, **known)
        for name in (case.verbs | case.own) - FITTED - ARGUMENTS - {"sample", "sample_states", "forecast", "predict_next"}
    }
    found["log_prob"] = lambda: model.log_prob(x, LENGTHS, **known)
    found["posterior"] = lambda: model.posterior(x, LENGTHS, **known).log_prob()
    found["sample"] = lambda: model.sample(6, 4, seed=7, **drawn)
    found["sample_states"] = lambda: model.sample_states(x, 3, LENGTHS, seed=5, **known)
    found["forecast"] = lambda: model.forecast(x, 3, LENGTHS, **known, **ahead)
    found["predict_next"] = lambda: model.predict_next(
        x, LENGTHS, **known, **({} if inputs is None else {"next_inputs": inputs[:, 0]})
    )
    if model.num_free_parameters < (80 if isinstance(model, VLHMM) else 24):
        found["summary"] = lambda: model.summary(x, LENGTHS, **known)
    if model.num_features is None and case.x is words:
        gap = x.index_put((torch.tensor(0), torch.tensor(2)), torch.tensor(-1))
        found["infill"] = lambda: model.infill(gap, LENGTHS, **known)
    if isinstance(model, IOHMM) and model.num_words is None:
        found["open_loop"] = lambda: model.open_loop(inputs, LENGTHS)
    if isinstance(model, LDS):
        found |= of_steps(model, x, known)
    if getattr(model, "feedback", False):  # averages of draws, whose seed is that of a block
        found = {name: lambda ask=ask: drawn_with(3, ask) for name, ask in found.items()}
    return model, found


def drawn_with(seed: int, ask: Callable[[], Any]) -> Any:
    with seeded(seed):
        return ask()


def of_steps(model: LDS, x: torch.Tensor, known: dict[str, Any]) -> Questions:
    """Behind a segment, and with matrices of single steps."""
    start = model.posterior(x, **known).filtered()
    h, n = model.num_states, model.num_features
    moves, noises = (torch.eye(size, dtype=torch.float64).expand(6, size, size) for size in (h, n))
    steps = {"transitions": 0.9 * moves, "emission_noises": noises}
    return {
        "posterior, segment": lambda: model.posterior(x, LENGTHS, start, **known).log_prob(),
        "smooth, steps": lambda: model.smooth(x, LENGTHS, **known, **steps),
    }


def of_tagger(name: str) -> tuple[Any, Questions]:
    sentences = tagged_sentences(40)
    tagger: Any = TAGGERS[name]().fit(sentences)
    asked = [sentence.words for sentence in sentences[:12]]
    found: Questions = {
        verb: lambda verb=verb: getattr(tagger, verb)(asked)
        for verb in ("tag", "decode", "smooth", "confidence", "entropy", "log_prob", "score", "filter", "predict_next")
    }
    found |= {
        "n_best": lambda: tagger.n_best(asked[0], 3), "sample_states": lambda: tagger.sample_states(asked, 2, seed=3),
        "sample": lambda: tagger.sample(6, 3, seed=3),
    }  # fmt: skip
    return tagger, found


def all_questions() -> dict[str, Callable[[], tuple[Any, Questions]]]:
    """Of every kind of model: a function that makes one, and what it is asked, whether or not it has an answer."""
    models = {name: lambda case=case: of_case(case) for name, case in (CASES | MORE).items()}
    return models | {f"{name} tagger": lambda name=name: of_tagger(name) for name in TAGGERS}


def answered(questions: Questions) -> dict[str, str]:
    """The answers to those questions that a model has, and to which these data have an answer."""
    found = {}
    for name, ask in questions.items():
        with contextlib.suppress(TypeError, ValueError, AttributeError, NotImplementedError):
            found[name] = as_text(ask())
    return found


def as_text(answer: Any) -> str:
    """All numbers of an answer, each to the last bit."""
    if isinstance(answer, torch.Tensor):
        return as_text(answer.detach().cpu().numpy())
    if isinstance(answer, np.ndarray):
        return f"{answer.shape} {answer.dtype} {answer.tobytes().hex()}" if answer.dtype != object else repr(answer.tolist())
    if isinstance(answer, dict):
        return as_text(list(answer.items()))
    if isinstance(answer, (tuple, list)):
        return f"[{', '.join(map(as_text, answer))}]"
    if isinstance(answer, (float, int, str, type(None))):
        return repr(answer)
    return as_text({name: value for name, value in getattr(answer, "__dict__", {}).items() if not callable(value)})
