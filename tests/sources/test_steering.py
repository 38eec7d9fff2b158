"""A frozen language model under a constraint: exact where it is the HMM itself, and always satisfied."""

import itertools

import pytest
import torch

from pplseq import HMM, Constraint, Vocabulary
from pplseq.sources import ConstraintProcessor

WORDS = ("<eos>", "the", "stock", "market", "fell", "rose", "<unk>", "today")
ABOUT = Constraint.containing("stock market") & Constraint.excluding("fell")


@pytest.fixture(scope="module")
def hmm():
    torch.manual_seed(1)
    model = HMM(3, num_words=8).double()
    model.vocabulary, model.is_fitted = Vocabulary(WORDS), True
    return model


def satisfied(row):
    words = [WORDS[word] for word in row]
    end = words.index("<eos>")
    return 3 <= end <= 7 and ABOUT.accepts(words[:end])


def test_the_hmm_as_its_own_language_model_is_drawn_from_exactly(hmm):
    """Weighing p_hmm(x | text) by p_hmm(constraint | text, x) is p_hmm(x | text, constraint)."""
    chain = hmm.constrained(ABOUT, prefix="the", length=(3, 7))
    processor, prompt = ConstraintProcessor(chain, 1), [1]
    text: list[int] = []
    for word in (2, 3, 5, 7, 0):
        at = chain.begin()
        for before in text:
            at = chain.read(at, torch.tensor([before]))
        plain = hmm.posterior(torch.tensor([prompt + text])).next().word_log_probs
        guided = processor(torch.tensor([prompt + text]), plain).log_softmax(-1)
        expected = chain.words_ahead(at) - chain.ahead(at)
        torch.testing.assert_close(guided, expected)
        text.append(word)


def gpt2():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=8, n_positions=32, n_embd=8, n_layer=1, n_head=2, initializer_range=1.0, bos_token_id=0, eos_token_id=0
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize("how", [dict(do_sample=True), dict(num_beams=3), dict(do_sample=True, num_return_sequences=4)])
def test_all_that_is_generated_satisfies(hmm, how):
    model, prompts = gpt2(), torch.tensor([[1, 4], [7, 7]])
    chain = hmm.posterior(prompts).constrained(ABOUT.over(hmm.vocabulary), 7, 3, end=0)
    torch.manual_seed(0)
    out = model.generate(
        prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=8, pad_token_id=0,
        logits_processor=[ConstraintProcessor(chain, 2)], **how,
    )  # fmt: skip
    assert len(out) == 2 * how.get("num_return_sequences", 1)
    assert all(satisfied(row) for row in out[:, 2:].tolist())


def test_texts_that_change_places_are_found_again(hmm):
    chain = hmm.constrained(ABOUT, length=(3, 7))
    processor, scores = ConstraintProcessor(chain), torch.zeros(3, 8, dtype=torch.float64)
    rows = torch.tensor([[2, 3], [1, 1], [2, 2]])
    processor(rows[:, :0], scores), processor(rows[:, :1], scores)
    again = processor(rows.flip(0), scores)
    torch.testing.assert_close(again, ConstraintProcessor(chain)(rows, scores).flip(0))


def table_model(vocabulary_size, seed=3):
    """A language model that knows the last two tokens and how many there are: no HMM of few states."""
    tables = 1.5 * torch.randn(8, 9, 9, vocabulary_size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def next_logits(ids):
        padded = torch.cat([torch.full((len(ids), 2), 8), ids], 1)
        return tables[ids.shape[1], padded[:, -2], padded[:, -1]]

    return next_logits


def log_prob_of(language_model, prompt, text):
    ids, total = torch.tensor([[*prompt, *text]]), 0.0
    for place in range(len(prompt), ids.shape[1]):
        total += float(language_model(ids[:, :place]).log_softmax(-1)[0, ids[0, place]])
    return total


@pytest.mark.parametrize("resample_below, end", [(0.0, 0), (0.5, 0), (1.0, None)])
def test_particles_have_the_language_models_own_distribution(hmm, resample_below, end):
    """Of p(constraint), and of each text that satisfies it, weighted shares are unbiased: within five standard errors, where
    tokens that are masked one by one are far off."""
    language_model, prompt, runs = table_model(8), [1], 50
    length = (3, 4) if end is not None else 3
    constraint = Constraint.containing("stock market") & Constraint.excluding("fell", "rose", "<unk>")
    chain = hmm.constrained(constraint, prefix=prompt, length=length, end=end)
    words = [word for word in range(8) if word != end]
    texts = [text for n in (range(3, 5) if end is not None else (3,)) for text in itertools.product(words, repeat=n)]
    texts = [text for text in texts if constraint.accepts([WORDS[word] for word in text])]
    ended = [text if end is None else (*text, end) for text in texts]
    wanted = torch.tensor([log_prob_of(language_model, prompt, text) for text in ended], dtype=torch.float64).exp()
    found, masked = torch.zeros(runs, len(texts), dtype=torch.float64), torch.zeros(len(texts), dtype=torch.float64)
    for run in range(runs):
        drawn = ConstraintProcessor(chain, 1).sample(
            language_model, prompt, 60, resample_below=resample_below, seed=run
        )
        assert drawn.log_weights.exp().sum() == pytest.approx(1) and 1 <= drawn.effective_size <= 60 + 1e-6
        shares = (drawn.log_weights + drawn.log_prob).exp()
        for row, share in zip(drawn.tokens.tolist(), shares.tolist(), strict=True):
            place = ended.index(tuple(token for token in row if token >= 0))
            found[run, place] += share
            masked[place] += 1 / (60 * runs)
    for each in (found.sum(1, keepdim=True), found[:, wanted > 0.02 * wanted.sum()]):
        error = each.std(0) / runs**0.5
        exact = wanted.sum() if each.shape[1] == 1 else wanted[wanted > 0.02 * wanted.sum()]
        assert bool(((each.mean(0) - exact).abs() < 5 * error).all())
    if not resample_below:  # unweighted these are the texts of the mask
        share = wanted / wanted.sum()
        assert bool(((masked - share).abs() > 10 * (share / (60 * runs)).sqrt()).any())


def test_what_particles_refuse(hmm):
    chain = hmm.constrained(ABOUT, prefix=[1], length=(3, 7))
    with pytest.raises(ValueError, match="prompt: expected 1 ids, as prompt_length says, got 2"):
        ConstraintProcessor(chain, 1).sample(table_model(8), [1, 2])
    with pytest.raises(ValueError, match="the language model has 9 tokens"):
        ConstraintProcessor(chain, 1).sample(table_model(9), [1])
    for prompt, kind, what in (([8], ValueError, r"whole numbers in 0..7, got \[8\]"), ([0.5], ValueError, "whole"),
                               ("the", TypeError, "prompt must hold numbers")):  # fmt: skip
        with pytest.raises(kind, match=what):
            ConstraintProcessor(chain, 1).sample(table_model(8), prompt)
    nan_of_one = torch.zeros(3, 8).index_fill(0, torch.tensor(1), torch.nan)
    for scores, what in (
        (nan_of_one, "after 0 tokens hold NaN"), (torch.zeros(3, 1, 8), r"got shape \(3, 1, 8\).* give \[:, -1\]"),
        (torch.zeros(8), "of the next token alone"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=what):
            ConstraintProcessor(chain, 1).sample(lambda ids, scores=scores: scores, [1], 3)
    only_fell = torch.full((8,), -torch.inf).index_fill(0, torch.tensor(4), 0.0)
    with pytest.raises(ValueError, match="after 0 tokens none"):
        ConstraintProcessor(chain, 1).sample(lambda ids: only_fell.expand(len(ids), 8), [1])
    both = hmm.posterior(torch.tensor([[1], [2]])).constrained(ABOUT.over(hmm.vocabulary), 3, end=0)
    with pytest.raises(ValueError, match="particles are of one prompt, and this chain is of 2"):
        ConstraintProcessor(both, 1).sample(table_model(8), [1])


def test_what_is_refused(hmm):
    chain = hmm.constrained(ABOUT, length=(3, 7))
    with pytest.raises(ValueError, match="the language model has 9 tokens, and the HMM 8 words"):
        ConstraintProcessor(chain)(torch.zeros(1, 0, dtype=torch.long), torch.zeros(1, 9))
    with pytest.raises(ValueError, match="give an end word, or one length"):
        ConstraintProcessor(hmm.constrained(ABOUT, length=(3, 7), end=None))
    with pytest.raises(ValueError, match="row 1 cannot satisfy the constraint any more within 8 tokens, of which 2 are there"):
        ConstraintProcessor(chain)(torch.tensor([[2, 3], [2, 4]]), torch.zeros(2, 8))
    with pytest.raises(ValueError, match="generate no more than that many"):
        ConstraintProcessor(chain)(torch.tensor([[2, 3] + [1] * 6]), torch.zeros(1, 8))
    with pytest.raises(ValueError, match="expected rows for each of 1 prompts, got 0 rows"):
        ConstraintProcessor(chain)(torch.zeros(0, 2, dtype=torch.long), torch.zeros(0, 8))
    both = hmm.posterior(torch.tensor([[1], [2]])).constrained(ABOUT.over(hmm.vocabulary), 3, end=0)
    with pytest.raises(ValueError, match="expected rows for each of 2 prompts, got 3 rows"):
        ConstraintProcessor(both, 1)(torch.tensor([[1], [1], [2]]), torch.zeros(3, 8))
