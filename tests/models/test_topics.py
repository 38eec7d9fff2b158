"""A VLHMM with topics beside the dense HMM over (topic, state) that it is."""

import itertools
import json
import math

import numpy as np
import pytest
import torch

from pplseq import VLHMM, checks
from pplseq.data.text import Text
from pplseq.models.texts import as_texts
from pplseq.models.vlhmm.program import KEPT_TOPIC
from pplseq.models.vlhmm.topics import KEPT, WINDOW, KeptTopics, window_topics, with_topics

F64 = torch.float64
BLOCKS = torch.tensor([0, 1, 1, 1, 2, 2, 2, 2, 1])
M, K, C, V = 3, 2, 3, 9
X = torch.tensor([[3, 4, 0, 5, 1, 0, 2, 7, 7, 0, 0, 6], [8, 1, 0, 4, 4, 2, 0, 5, 5, 5, 1, 3]])
close = torch.testing.assert_close


def made(**options) -> VLHMM:
    torch.manual_seed(0)
    options = {"hidden_size": 4, "transition": "hierarchical", "num_topics": C, "reset_id": 0} | options
    model = VLHMM(M * K, num_words=V, blocks=BLOCKS, **options).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.7 * torch.randn_like(parameter))
    model.is_fitted = True
    return model.eval()


def dense(model: VLHMM) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Start (C N,), moves (C N, C N) and words (C N, V) as the definition has them; states by topic, then block."""
    config, count = model.config, M * K
    if config["parameterization"] == "scalar":
        scores, start = model.transition_table, model.start_table.softmax(-1)
        said = model.word_table.T[torch.arange(count) % K]
        gates = model.block_table if config["transition"] == "hierarchical" else None
    else:
        embedding = model.embeddings("all", None, model._index()[0])
        out, said = model.out_layer(embedding), model.word_score(model.emit_layer(embedding))
        start = torch.softmax(model.start_score(model.start_layer(embedding)).squeeze(-1), -1)
        scores = out @ embedding.T
        gates = model.block_score(out) if config["transition"] == "hierarchical" else None
    starts = (start.log().unsqueeze(-1) + model.topic_starts[torch.arange(count) // K]).softmax(0)
    block, prior, kept = torch.arange(count) // K, model.topic_prior.softmax(-1), model.topic_kept.sigmoid()
    moves, words = torch.zeros(C, count, C, count, dtype=F64), torch.zeros(C, count, V, dtype=F64)
    for c, z in itertools.product(range(C), range(count)):
        score = said[z] + model.topic_words[:, c]
        words[c, z] = score.masked_fill(BLOCKS != block[z], -math.inf).softmax(-1)
        if block[z] == 0 and model.reset_id is not None:
            for other in range(C):
                moves[c, z, other] = (kept * (c == other) + (1 - kept) * prior[other]) * starts[:, other]
            continue
        if gates is None:
            moves[c, z, c] = torch.softmax(scores[z] + model.topic_blocks[block, c], -1)
            continue
        gate = torch.softmax(gates[z] + model.topic_blocks[:, c], -1)
        for b in range(M):
            moves[c, z, c, block == b] = gate[b] * torch.softmax(scores[z, block == b], -1)
    return (prior.unsqueeze(-1) * starts.T).flatten(), moves.view(C * count, -1), words.view(C * count, V)


def log_prob(tables, x: torch.Tensor) -> torch.Tensor:
    start, moves, words = tables
    message = start
    for t, word in enumerate(x.tolist()):
        message = message if t == 0 else message @ moves
        message = message * (words[:, word] if word >= 0 else 1.0)
    return message.sum().log()


KINDS = [{}, {"transition": "softmax"}, {"parameterization": "scalar"}, {"transition": "softmax", "parameterization": "scalar"}]


@pytest.mark.parametrize(
    "options", [*KINDS, {"reset_id": None}, {"parameterization": "factored"}, {"topic_persistence": 0.9}], ids=str
)
def test_values_and_gradients_are_those_of_the_dense_hmm(options):
    model = made(**options)
    expected = torch.stack([log_prob(dense(model), row) for row in X])
    close(model.posterior(X).log_prob(), expected.detach())
    leaves = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(model.log_joint(X), leaves, allow_unused=True)
    for mine, truth in zip(found, torch.autograd.grad(expected.sum(), leaves, allow_unused=True), strict=True):
        close(torch.zeros(()) if mine is None else mine, torch.zeros(()) if truth is None else truth)


@pytest.mark.parametrize("options", KINDS[:2], ids=str)
@pytest.mark.parametrize("missing", [False, True])
def test_topics_are_sums_over_states(missing, options):
    model, x = made(**options), X.clone()
    if missing:
        x[0, 2] = x[1, 11] = x[1, 4] = -1
    tables = dense(model)
    found = model.topics(x)
    for row, t in itertools.product(range(2), range(12)):
        start, moves, words = tables
        joint = []
        for c in range(C):  # p(topic c at t, x)
            message = start
            for s, word in enumerate(x[row].tolist()):
                message = message if s == 0 else message @ moves
                message = message * (words[:, word] if word >= 0 else 1.0)
                if s == t:
                    message = message * (torch.arange(len(message)) // (M * K) == c)
            joint.append(message.sum())
        joint = torch.stack(joint)
        close(found[row, t], (joint / joint.sum()).detach())


@pytest.mark.parametrize("options", KINDS[:2], ids=str)
def test_topics_that_are_known_close_all_others(options):
    model = made(**options)
    known = torch.tensor([[2, 2, 2, -1, -1, -1, 0, 0, 0, 0, -1, -1], [-1, -1, -1, 1, 1, 1, 1, 1, -1, -1, -1, -1]])
    start, moves, words = dense(model)
    topic = torch.arange(len(start)) // (M * K)
    expected = []
    for row in range(2):
        message = start
        for t in range(12):
            message = (message if t == 0 else message @ moves) * words[:, X[row, t]]
            message = message * ((known[row, t] < 0) | (topic == known[row, t]))
        expected.append(message.sum().log())
    expected = torch.stack(expected)
    with checks.trusted(), checks.whole_text():
        x = X + V * (1 + known)
        close(model.posterior(x).log_prob(), expected.detach())
        first = model.posterior(x[:, :5])
        close(first.log_prob() + model.posterior(x[:, 5:], start=first.filtered()).log_prob(), expected.detach())
        mine = torch.autograd.grad(model.log_joint(x), model.topic_words)[0]
    close(mine, torch.autograd.grad(expected.sum(), model.topic_words)[0])


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_carried_is_whole_and_other_questions_are_exact(options):
    model = made(**options)
    whole = model.posterior(X).log_prob()
    first = model.posterior(X[:, :7])
    second = model.posterior(X[:, 7:], start=first.filtered())
    close(first.log_prob() + second.log_prob(), whole)
    start, moves, words = (table.detach() for table in dense(model))
    # next words, also behind the end of a sentence
    for row, steps in itertools.product(range(2), (12, 10)):
        message = start * words[:, X[row, 0]]
        for word in X[row, 1:steps].tolist():
            message = (message @ moves) * words[:, word]
        close(model.predict_next(X[:, :steps])[1][row].exp(), (message @ moves @ words / message.sum()).detach())
    # a hole in the text
    x = X.clone()
    x[0, 5] = -1
    total = torch.stack([log_prob((start, moves, words), torch.cat([X[0, :5], torch.tensor([v]), X[0, 6:]])) for v in range(V)])
    close(model.posterior(x).log_prob()[0], torch.logsumexp(total, 0).detach())
    # the best path, against all of a short text
    paths, value = model.posterior(X[:1, :3]).viterbi()
    ids = [(b * C + c) * K + k for c in range(C) for b in range(M) for k in range(K)]  # of states by topic, then block
    best = max(
        (float(start[p[0]] * math.prod(float(moves[p[t - 1], p[t]]) for t in range(1, 3))
               * math.prod(float(words[p[t], X[0, t]]) for t in range(3))), p)
        for p in itertools.product(range(M * K * C), repeat=3)
    )  # fmt: skip
    assert [ids[state] for state in best[1]] == paths[0].tolist() and float(value[0]) == pytest.approx(math.log(best[0]))


@pytest.mark.parametrize("options", KINDS[1::2], ids=str)
def test_one_softmax_becomes_a_hierarchy_that_keeps_its_topics(options):
    model = made(**options)
    new = model.split(1, transition="hierarchical", noise=0.0)
    close(new.score(X), model.score(X), rtol=1e-9 if "parameterization" in options else 0.05, atol=0)


def test_dropout_trains_and_folders_keep_topics(tmp_path):
    from pplseq import load

    torch.manual_seed(0)
    model = VLHMM(num_states=8, hidden_size=8, transition="hierarchical", num_topics=2, state_dropout=0.5)
    lines = ["the cat sees the dog", "a dog sleeps", "stocks fell sharply", "the market fell again"] * 30
    model.fit(lines, num_blocks=4, epochs=2, batch_size=4, segment_length=8, seed=0, folder=tmp_path / "run")
    x = ["the cat sleeps", "stocks fell"]
    again = load(tmp_path / "run")
    assert again.num_topics == 2 and again.score(x) == pytest.approx(model.score(x), rel=1e-6)
    assert [part.shape[1:] for part in model.topics(x)] == [(2,), (2,)] and len(model.lifted_words(3)) == 2
    from click.testing import CliRunner

    from pplseq.cli import main

    told = CliRunner().invoke(main, ["query", str(tmp_path / "run"), "topics", "--top", "2"], input="stocks fell\n")
    (answer,) = map(json.loads, told.stdout.splitlines())
    assert sum(topic["prob"] for topic in answer["topics"]) == pytest.approx(1.0)
    assert [len(topic["words"]) for topic in answer["topics"]] == [2, 2]


def test_how_long_topics_are_kept_is_the_likeliest_for_sentences_in_their_order():
    rng = np.random.default_rng(0)
    tokens = np.where(rng.random(400) < 0.4, 0, rng.integers(1, 3, 400) + 2 * (np.arange(400) // 50 % 4))
    model = made()
    keep = KeptTopics(model, tokens)

    def likelihood(log_odds: float) -> float:
        with torch.no_grad():
            model.topic_kept.fill_(log_odds)
            return sum(float(log_prob(dense(model), torch.from_numpy(np.concatenate(run)))) for run in keep.runs)

    keep()
    found = float(model.topic_kept.detach())
    assert len(keep.runs) > 1 and sum(map(len, itertools.chain(*keep.runs))) > 250
    assert found == max([*KEPT.tolist()[::8], found - 0.125, found, found + 0.125], key=likelihood)


def test_how_long_topics_are_kept_is_of_the_parameters_that_a_fit_ends_with(tmp_path):
    lines = ["the cat sees the dog", "a dog sleeps", "stocks fell sharply", "the market fell again"] * 15
    options = dict(num_blocks=4, batch_size=4, segment_length=8, seed=0, lr=0.05, schedule="plateau")
    found = []
    for folder, epochs in ((None, 2), (tmp_path / "whole", 2), (tmp_path / "parts", 1), (tmp_path / "parts", 2)):
        model = VLHMM(num_states=8, hidden_size=8, transition="hierarchical", num_topics=2)
        model.fit(lines, epochs=epochs, folder=folder, resume=folder is not None and folder.exists(), **options)
        before = model.topic_kept.detach().clone()
        text = as_texts(lines, None, None, vocabulary=model.vocabulary, num_words=model.num_words).train
        KeptTopics(model, text.tokens)()
        assert torch.equal(model.topic_kept.detach(), before)
        found.append(model.state_dict())
    for other in (found[1], found[3]):
        assert all(torch.equal(found[0][name], other[name]) for name in other)


def test_one_sentence_says_nothing_of_how_long_topics_are_kept():
    model = VLHMM(num_states=8, hidden_size=8, transition="hierarchical", num_topics=2)
    model.fit(["the cat sees the dog and the bird"], num_blocks=4, epochs=1, batch_size=1, segment_length=4, seed=0)
    assert float(model.topic_kept.detach()) == KEPT_TOPIC
    with torch.no_grad():
        model.topic_kept.fill_(-1.5)
    for weight_decay in (0.0, 0.5):  # which would take it along
        model.fit(["the cat"], epochs=2, batch_size=1, segment_length=4, seed=0, warm_start=True, weight_decay=weight_decay)
        assert float(model.topic_kept.detach()) == -1.5


def test_few_sentences_have_an_order():
    tokens = np.array([1, 2, 0] * 15)
    (run,) = KeptTopics(made(), tokens).runs
    assert len(run) == 15


def test_batches_of_shuffled_lines_say_nothing_of_how_long_topics_are_kept():
    lines = ["the cat sees the dog", "a dog sleeps", "stocks fell sharply", "the market fell again"] * 30
    found = {}
    for shuffle, kept in itertools.product(("line", "none"), (0.1, 0.9)):
        torch.manual_seed(0)
        model = VLHMM(num_states=8, hidden_size=8, transition="hierarchical", num_topics=2)
        model.fit(lines, num_blocks=4, epochs=1, batch_size=4, segment_length=8, seed=0, shuffle=shuffle)
        with torch.no_grad():
            model.topic_kept.fill_(math.log(kept / (1 - kept)))
        model.fit(lines, epochs=1, batch_size=4, segment_length=8, seed=0, shuffle=shuffle, warm_start=True)
        found[shuffle, kept] = model.state_dict()
        assert (float(model.topic_kept.detach()) in KEPT.float().tolist()) == (shuffle == "line")
    one, other = found["line", 0.1], found["line", 0.9]
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(found["none", 0.1]["topic_words"], found["none", 0.9]["topic_words"])


def test_windows_tell_topics_apart():
    rng = np.random.default_rng(0)
    parts = [rng.choice([*range(100), *range(100 + 50 * kind, 150 + 50 * kind)], WINDOW) for kind in (0, 1) for _ in range(20)]
    torch.manual_seed(0)
    found = window_topics(np.concatenate(parts), 200, 2)
    of_parts = window_topics(np.concatenate(parts), 200, 2, np.array([0, 15 * WINDOW, 40 * WINDOW]))
    assert found is not None and of_parts is not None and all(map(torch.equal, found, of_parts))
    lifts, shares = found
    sign = torch.sign(lifts[100, 0] - lifts[100, 1])
    assert bool((sign * (lifts[100:150, 0] - lifts[100:150, 1]) > 0.5).all())
    assert bool((sign * (lifts[150:, 0] - lifts[150:, 1]) < -0.5).all()) and float(shares.min()) > 0.4
    assert window_topics(np.zeros(WINDOW - 1, np.int64), 200, 2) is None
    assert window_topics(rng.choice(20, 3 * WINDOW), 200, 2) is None, "every word in every window"


def test_labelled_lines_make_a_classifier(tmp_path):
    """Which of two kinds of sentences a line is of shows in the order of its words alone."""
    rng = np.random.default_rng(0)

    def drawn(count: int) -> tuple[list[list[str]], list[int]]:
        kinds = rng.integers(0, 2, count)
        pairs = [rng.permutation(4)[:3] for _ in kinds]
        both = zip(pairs, kinds, strict=True)
        return [[w for k in some for w in (f"a{k}", f"b{k}")[:: 1 - 2 * kind]] for some, kind in both], kinds.tolist()

    lines, labels = drawn(160)
    some = [label if number % 2 else (None, math.nan, -1)[number % 3] for number, label in enumerate(labels)]
    options = dict(num_blocks=5, batch_size=8, segment_length=8, seed=0, lr=0.05, folder=tmp_path / "run")
    model = VLHMM(num_states=10, hidden_size=16, num_topics=2, topic_decay=0.0).fit(lines, topics=some, epochs=6, **options)
    with pytest.raises(ValueError, match="the training text of x is no longer the one"):
        VLHMM(num_states=10, hidden_size=16, num_topics=2, topic_decay=0.0).fit(
            lines, topics=some[::-1], epochs=11, resume=True, **options
        )
    lines, labels = drawn(100)
    found = [probs[-1].argmax().item() for probs in model.topics(lines)]
    assert np.mean(np.array(found) == labels) > 0.9


def test_labels_place_topics_and_what_is_not_labelled_follows():
    words = [["w", "x", f"{'ab'[kind]}{number % 9}"] for kind in (1, 0, 1) for number in range(40)]
    text = as_texts(words).train
    labels = [1] * 10 + [None] * 30 + [0] * 10 + [None] * 70
    labelled, starts = with_topics(text, labels, 2)
    assert starts is text.line_starts and (labelled.tokens[: 3] // len(text.vocabulary) == 2).all()
    lifts, shares = window_topics(labelled.tokens, len(text.vocabulary), 2, starts)
    a, b = ([text.vocabulary.words.index(f"{letter}{k}") for k in range(9)] for letter in "ab")
    assert bool((lifts[a, 0] > lifts[a, 1]).all()) and bool((lifts[b, 1] > lifts[b, 0]).all())
    assert shares[1] > shares[0]
    text = Text.from_lines(words, article_starts=[0, 100, 120])
    tokens, starts = with_topics(text, [np.float32(math.nan), np.float32(1)], 2)
    assert starts.tolist() == [0, 400, 480]
    assert (tokens.tokens // len(text.vocabulary)).tolist() == [0] * 400 + [2] * 80


@pytest.mark.parametrize(
    "topics, message",
    [
        ([0, 1], r"topics: expected one for each of 3 lines, or 3 articles, got 2"),
        ([0, 2, None], r"topics: the model has topics 0\.\.1, got 2 for line 1"),
        (["sport", None, None], "topics: expected a whole number from 0 for each line, .* got 'sport' for line 0; number the"),
        (3, "topics: expected a list of numbers, one for each line, got 3"),
        ([0, 1, math.inf], "topics: expected a whole number .* got inf for line 2"),
        ([0, 0.5, 1], r"topics: expected a whole number .* got 0\.5 for line 1"),
    ],
)
def test_topics_that_do_not_fit_are_named(topics, message):
    model = VLHMM(num_states=4, hidden_size=4, num_topics=2)
    with pytest.raises((ValueError, TypeError), match=message):
        model.fit(["a b", "b c", "c a"], topics=topics, num_blocks=2, epochs=1)
    with pytest.raises(ValueError, match="topics: in a text without resets the topic never changes"):
        model.fit(["a b", "b c", "c a"], topics=[0, 0, 1], num_blocks=2, epochs=1, reset=False)
    with pytest.raises(ValueError, match="topics: the model has one topic; make it with num_topics"):
        VLHMM(num_states=4, hidden_size=4).fit(["a b", "b c", "c a"], topics=[0, 0, 0], num_blocks=2, epochs=1)


def test_a_short_text_keeps_the_topics_that_were_drawn():
    rng = np.random.default_rng(0)
    lines = [[f"w{word}" for word in np.minimum(rng.zipf(1.3, 10), 500)] for _ in range(100)]
    model = VLHMM(num_states=32, hidden_size=16, num_topics=2, transition="hierarchical")
    model.fit(lines, num_blocks=4, epochs=1, batch_size=8, seed=0)
    assert math.isfinite(model.score(lines))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"states_per_block": [1, 2, 3]}, r"num_topics: topics need blocks of one size, got states_per_block=\[1, 2, 3\]"),
        ({"reset_id": 1}, "reset_id: with topics the word 1 needs a block of its own"),
        ({"num_topics": 1, "topic_persistence": 0.5}, "topic_persistence: there is one topic"),
        ({"topic_persistence": 1.0}, "topic_persistence"),
    ],
)
def test_what_does_not_go_with_topics_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        made(**options)


def test_a_model_without_topics_says_so():
    with pytest.raises(ValueError, match="topics: the model has one topic"):
        made(num_topics=1).topics(X)


def test_a_topic_comes_back_across_segments_in_single_precision():
    torch.manual_seed(0)
    options = dict(hidden_size=4, reset_id=4, transition="hierarchical", num_topics=2, init_scale=1.0)
    model = VLHMM(6, num_words=5, blocks=torch.tensor([0, 1, 0, 1, 2]), **options).eval()
    with torch.no_grad():
        model.topic_words.zero_()
        model.topic_words[0], model.topic_words[2] = torch.tensor([15.0, -15.0]), torch.tensor([-15.0, 15.0])
    x = torch.tensor([[0] * 6 + [2] * 12])
    belief, total = None, 0.0
    with torch.no_grad():
        for begin, end in ((0, 6), (6, 9), (9, 18)):
            chain = model.posterior(x[:, begin:end], start=belief)
            belief, total = chain.filtered(), total + float(chain.log_prob())
        whole = float(model.log_prob(x))
        exact = float(model.double().log_prob(x))
    assert exact > -204 and total == pytest.approx(exact, rel=1e-5) and whole == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_topics_that_are_hundreds_of_nats_apart_have_values_and_slopes_in_single_precision(options):
    model = made(**options)
    with torch.no_grad():
        for name, apart in (("words", 60.0), ("blocks", 50.0), ("starts", 50.0)):
            own = getattr(model, f"topic_{name}")
            own.copy_(apart * (torch.randn_like(own).sign() + 0.01 * own))
        if hasattr(model, "word_score"):
            model.word_score.bias.copy_(-model.topic_words[:, 0])
        model.topic_prior.copy_(torch.tensor([0.0, -150.0, 3.0]))
        model.topic_kept.fill_(30.0)
        for parameter in model.parameters():
            parameter.copy_(parameter.float())  # the same numbers in both
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    expected = torch.stack([log_prob(dense(model), row) for row in X[:, :5]])
    slopes = torch.autograd.grad(expected.sum(), [model.get_parameter(name) for name in names], allow_unused=True)
    model.float()
    close(model.posterior(X[:, :5]).log_prob(), expected.detach().float(), rtol=1e-4, atol=1e-3)
    found = torch.autograd.grad(model.log_joint(X[:, :5]), [model.get_parameter(name) for name in names], allow_unused=True)
    for mine, truth in zip(found, slopes, strict=True):
        if truth is not None:
            close(mine, truth.float(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_states_that_are_left_out_are_left_out_of_every_normaliser(options):
    """In training: by base states as by all, from a belief over states that are left out now."""
    model = made(state_dropout=0.5, **options)
    start = model.posterior(X[:, :4]).filtered()
    model.train()
    transition, emission = model.specs()
    given = model.given(X[:, 4:], None, start)
    chain = given.chain(transition, emission, start, given.before(slice(None)))
    rows = transition.outside_rows(start.ids, torch.arange(transition.layout.num_kept))
    close(rows.exp().sum(-1), torch.ones(rows.shape[:2], dtype=F64))
    block = transition.layout.block_of_state()[transition.layout.kept_ids]
    moves = transition.log_probs(transition.leaving(torch.arange(transition.layout.num_kept)), torch.arange(M)).flatten(1)
    message = None
    for word in X[:, 4:].T:
        before, by = (start.log_probs, rows) if message is None else (message, moves)
        message = torch.logsumexp(before.unsqueeze(-1) + by, -2)
        said = torch.full_like(message, -math.inf)
        for row in range(len(X)):
            said[row, block == BLOCKS[word[row]]] = emission.log_prob_at(word)[row]
        message = message + said
    close(chain.log_prob(), torch.logsumexp(message, -1))
