"""A frozen language model under a constraint: exact where it is the HMM itself, and always satisfied."""

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
    both = hmm.posterior(torch.tensor([[1], [2]])).constrained(ABOUT.over(hmm.vocabulary), 3, end=0)
    with pytest.raises(ValueError, match="expected rows for each of 2 prompts, got 3 rows"):
        ConstraintProcessor(both, 1)(torch.tensor([[1], [1], [2]]), torch.zeros(3, 8))
