"""A VLHMM that starts at the class bigrams of its text."""

import math

import numpy as np
import pytest
import torch
from support.vlhmm_models import BLOCKS, make, tables_by_hand

from pplseq.data import Text
from pplseq.models import VLHMM
from pplseq.models.vlhmm.counts import ADDED, start_from_counts

LINES = ["b c", "b d f", "a b", "c", "", "d e d", "b b f a"] * 3
TEXT = Text.from_lines([line.split() for line in LINES])  # seven words, with <eos>
close = torch.testing.assert_close


def frequencies(text, blocks):
    """(V,) p(word | block), (M, M) p(block | block before), (M,) p(block | line begins), counted word by word."""
    m = int(blocks.max()) + 1
    words, pairs, first = np.full(len(blocks), ADDED), np.full((m, m), ADDED), np.full(m, ADDED)
    before = None
    for line in text.lines():
        for k, word in enumerate(line.tolist()):
            here = int(blocks[word])
            words[word] += 1
            first[here] += k == 0
            if before is not None:
                pairs[before, here] += 1
            before = here
    of_block = np.bincount(blocks.numpy(), weights=words)
    shares = words / of_block[blocks.numpy()], pairs / pairs.sum(1, keepdims=True), first / first.sum()
    return [torch.tensor(share) for share in shares]


def found(model):
    """The same of a model, for each state: p(word | z) (Z, V), p(block | z) (Z, M), p(block of z_1) (M,)."""
    initial, matrix, emission = tables_by_hand(model)
    of_state = model.specs()[0].layout.block_of_kept
    inside = torch.nn.functional.one_hot(of_state).to(matrix)
    return emission.exp(), matrix.exp() @ inside, initial.exp() @ inside


@pytest.mark.parametrize("option", ["scalar", "uneven, scalar", "scalar with temperature", "reset, scalar"])
def test_tables_are_the_frequencies(option):
    blocks = torch.cat([BLOCKS, torch.tensor([0])])
    config = make(f"hierarchical, {option}", init_scale=0.0).config | {"num_words": len(TEXT.vocabulary)}
    model = VLHMM(blocks=blocks, **config).double().eval()
    with torch.no_grad():
        start_from_counts(model, TEXT)
        words, pairs, first = frequencies(TEXT, blocks)
        emission, to_blocks, begin = found(model)
    of_state = model.specs()[0].layout.block_of_kept
    close(to_blocks, pairs[of_state])
    close(begin, first)
    wanted = torch.where(blocks == of_state.unsqueeze(-1), words, 0.0)
    close(emission, wanted)


@pytest.mark.parametrize("more", [{}, dict(tied=False), dict(shared_layer=True), dict(parameterization="factored"),
                                  dict(temperature=2.0), dict(state_dropout=0.5)])  # fmt: skip
def test_features_come_near_the_frequencies(more):
    torch.manual_seed(0)
    blocks = torch.arange(7) % 3
    model = VLHMM(
        12, num_words=7, blocks=blocks, hidden_size=24, transition="hierarchical", init_scale=0.1, **more
    ).double().train()
    _, pairs, first = frequencies(TEXT, blocks)
    of_state = torch.arange(12) // 4

    def far():
        emission, to_blocks, begin = found(model.eval())
        return [float(d.abs().max()) for d in (to_blocks - pairs[of_state], begin - first)]

    with torch.no_grad():
        drawn = far()
        model.train()
        start_from_counts(model, TEXT)
        assert model.training
        reached = far()
        assert sum(reached) < 0.7 * sum(drawn), (reached, drawn)
        counted = torch.as_tensor(np.bincount(TEXT.tokens, minlength=7) + ADDED)
        close(model.word_score.bias.softmax(0), counted / counted.sum())
        model_states = [table.weight for table in model.states.values()]
        assert all(len(table.unique(dim=0)) == 12 for table in model_states), "the states of a block part"


def test_lines_without_an_end_follow_nothing():
    rows = [[0, 1], [2, 0], [1]]
    model = VLHMM(num_states=3, parameterization="scalar", init_scale=0.0, transition="hierarchical")
    model.fit(rows, blocks="uniform", num_blocks=3, reset=False, start="counts", epochs=1, lr=1e-12, seed=0)
    blocks = model.block_of_word
    with torch.no_grad():
        matrix = found(model.eval())[1]
    wanted = torch.full((3, 3), ADDED)
    for left, right in ((0, 1), (2, 0)):
        wanted[blocks[left], blocks[right]] += 1
    close(matrix, (wanted / wanted.sum(-1, keepdim=True)).to(matrix), rtol=1e-5, atol=1e-6)


def test_it_is_ahead_of_a_random_start_and_repeatable():
    options = dict(num_blocks=4, batch_size=4, segment_length=8, epochs=1, lr=1e-6, seed=0, validation=LINES)
    reached = [
        VLHMM(num_states=8, hidden_size=16, transition="hierarchical").fit(LINES, start=start, **options).history.progress.best
        for start in ("random", "counts", "counts")
    ]
    assert reached[1] < reached[0] - 0.2 and reached[1] == reached[2] and math.isfinite(reached[1])


def test_it_can_be_trained_from_there():
    """Features nearly depend on each other: an exact fit has weights in the thousands, which a step throws about."""
    model = VLHMM(num_states=32, hidden_size=32, transition="hierarchical", shared_layer=True)
    records = []
    model.fit(LINES, num_blocks=4, batch_size=4, segment_length=8, epochs=3, lr=0.006, seed=0, start="counts",
              log_interval=1, on_record=records.append)  # fmt: skip
    losses = [record["nats_per_token"] for record in records if record["kind"] == "train"]
    assert max(losses) < losses[0] + 0.5 and losses[-1] < losses[0]
    assert max(float(parameter.detach().abs().max()) for parameter in model.parameters()) < 20


@pytest.mark.parametrize("options, message", [
    (dict(start="counts"), "one softmax over states does not have; choose transition = hierarchical"),
    (dict(start="count", transition="hierarchical"), "start must be one of random, counts"),
    (dict(start="counts", transition="hierarchical", warm_start=True), "warm start trains on"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(options, message):
    options = dict(options)
    transition = options.pop("transition", "softmax")
    with pytest.raises(ValueError, match=message):
        VLHMM(num_states=8, hidden_size=8, transition=transition).fit(LINES, num_blocks=4, epochs=1, **options)


def test_another_text_is_refused():
    with pytest.raises(ValueError, match="the model has 6 words, and the text 7"):
        start_from_counts(make("hierarchical, scalar"), TEXT)


@pytest.mark.parametrize("more", [{}, dict(tied=False), dict(shared_layer=True), dict(parameterization="factored")])
def test_topics_share_what_is_counted(more):
    """What topics add to scores is zero here, so that C copies of the states are the HMM of one topic."""
    torch.manual_seed(0)
    options = dict(num_words=7, blocks=torch.arange(7) % 3, hidden_size=24, transition="hierarchical", **more)
    one, several = (VLHMM(12, num_topics=count, **options).double().eval() for count in (1, 2))
    own = several.state_dict()
    with torch.no_grad():
        own["topic_words"].zero_()
        one.load_state_dict({name: own[name] for name in one.state_dict()})
        for model in (one, several):
            torch.manual_seed(1)
            start_from_counts(model, TEXT)
        x = torch.as_tensor(TEXT.tokens).unsqueeze(0)
        close(several.log_prob(x), one.log_prob(x))


def test_a_fit_of_topics_starts_at_the_counts():
    for more in ({}, dict(parameterization="factored", state_dropout=0.5)):
        model = VLHMM(16, hidden_size=8, transition="hierarchical", num_topics=2, **more)
        model.fit(LINES, start="counts", num_blocks=4, epochs=1, lr=1e-9, seed=0)
        one = VLHMM(16, hidden_size=8, transition="hierarchical", **more)
        one.fit(LINES, start="counts", num_blocks=4, epochs=1, lr=1e-9, seed=0)
        assert model.score(LINES, per_token=True) == pytest.approx(one.score(LINES, per_token=True), abs=0.1)
