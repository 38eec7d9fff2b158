"""Columns of embeddings and posteriors, sentence by sentence, against those of whole batches; and from models on disk."""

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import pplseq
from pplseq.cli import main
from pplseq.data import TaggedSentence, Vocabulary, write_tagged
from pplseq.loading import load_text_model
from pplseq.models import VLHMM
from pplseq.models.taggers.columns import EmbeddingColumns, PosteriorColumns, TypeColumns
from pplseq.models.taggers.saved_columns import SavedColumns
from pplseq.recipes.taggers.systems import load_tagger, make_tagger

LINES = [["a", "dog", "barks"], ["a", "cat"], ["<unk>", "dog", "sees", "a", "cat"]]
SENTENCES = [["A", "dog", "barks", "."], [], ["The", "cat", ",", "a", "dog"], ["."], ["mice"]]


@pytest.fixture
def vocabulary():
    return Vocabulary.build(LINES)


class FakeLDS:
    """Embeddings that tell which token of which sentence they are of."""

    num_states = 3

    def embed_tokens(self, text, kind):
        assert kind == "filtered"
        place = np.concatenate([np.arange(n) for n in text.lengths])
        return np.stack([text.tokens, place, np.ones(len(place))], 1)


def test_embedding_of_each_word_without_ends_of_sentences(vocabulary):
    source = EmbeddingColumns(FakeLDS(), vocabulary, str.lower, kind="filtered")
    columns = source(SENTENCES)
    words = [w.lower() for s in SENTENCES for w in s]
    places = [t for s in SENTENCES for t in range(len(s))]
    assert columns.ids is None and not source.sparse and source.num_columns == 3
    np.testing.assert_array_equal(columns.values, np.stack([vocabulary.encode(words), places, np.ones(len(words))], 1))


def test_vectors_of_types(vocabulary):
    vectors = np.random.default_rng(0).normal(size=(len(vocabulary), 2))
    columns = TypeColumns(vectors, vocabulary, str.lower)(SENTENCES)
    words = [w.lower() for s in SENTENCES for w in s]
    np.testing.assert_allclose(columns.values, vectors[vocabulary.encode(words)], rtol=1e-6)
    with pytest.raises(ValueError, match="vectors: expected one for each of"):
        TypeColumns(vectors[1:], vocabulary)


@pytest.mark.parametrize("least", [1e-6, 0.3])
def test_posteriors_are_those_of_each_sentence_alone_without_words_left_out(vocabulary, least):
    torch.manual_seed(0)
    blocks = torch.arange(len(vocabulary)) % 2
    model = VLHMM(6, num_words=len(vocabulary), blocks=blocks, hidden_size=8, reset_id=vocabulary.eos_id, init_scale=1.0)

    def forms(word):
        return word.lower() if word.isalpha() else None

    source = PosteriorColumns(model, vocabulary, forms, least=least, batch_size=2)
    columns = source(SENTENCES)
    assert columns.values.shape == columns.ids.shape and len(columns.values) == sum(map(len, SENTENCES))
    row = 0
    for sentence in SENTENCES:
        kept = [forms(word) for word in sentence if word.isalpha()]
        x = torch.tensor([[*vocabulary.encode(kept), vocabulary.eos_id]])
        probs = iter(model.posterior(x).marginals().dense(6)[0, :-1].numpy())
        for word in sentence:
            expected = next(probs) if word.isalpha() else np.zeros(6)
            got = np.zeros(6)
            used = columns.ids[row] >= 0
            got[columns.ids[row][used]] = columns.values[row][used]
            np.testing.assert_allclose(got, np.where(expected >= least, expected, 0.0), atol=1e-6)
            row += 1
    assert source([[], ["."]]).values.shape[0] == 1
    with pytest.raises(ValueError, match="least: expected a probability"):
        PosteriorColumns(model, vocabulary, least=0)


# ------------------------------------------------------------------------------------------------ from models on disk
PAIRS = (("dog", "N"), ("cat", "N"), ("barks", "V"), ("sees", "V"))
TAGGED = [TaggedSentence(("a", word), ("D", tag)) for word, tag in PAIRS] * 4


def run(*arguments, code=0, input=None):
    result = CliRunner().invoke(main, [str(a) for a in arguments], input=input, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def vectors(tmp_path):
    """Of types: the first number tells nouns from verbs, also of words without tags."""
    words = ["a", "dog", "cat", "mouse", "barks", "sees", "eats"]
    rows = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32) * 0.1
    rows[:, 0] = [0, 1, 1, 1, -1, -1, -1]
    np.savez(tmp_path / "vectors.npz", words=np.array(words), embeddings=rows)
    return tmp_path / "vectors.npz"


def test_vectors_from_a_file_by_the_command(vectors, tmp_path):
    write_tagged(tmp_path / "train.conllu", TAGGED)
    given = ("--set", "l2=0.1", "--set", 'templates=["digits[0]"]', "--embeddings", vectors)
    run("train", "tagger", tmp_path / "train.conllu", "--system", "crf", *given, "--out", tmp_path / "run")
    # words that no tagged text has
    assert run("tag", "run", tmp_path / "run", input="a mouse\na eats\n").stdout == "a_D mouse_N\na_D eats_V\n"
    tagger = pplseq.load(tmp_path / "run")
    assert tagger.columns.path == vectors and tagger.column_scale == 0.3
    assert tagger.tag([("a", "mouse"), ("a", "eats")]) == [("D", "N"), ("D", "V")]
    tagger.save(tmp_path / "again")
    kept = vectors.read_bytes()
    np.savez(vectors, words=np.array(["a"]), embeddings=np.ones((1, 3)))
    with pytest.raises(ValueError, match="is not what this tagger was trained with"):
        pplseq.load(tmp_path / "again")
    vectors.write_bytes(kept)
    assert pplseq.load(tmp_path / "again").tag([("a", "mouse")]) == [("D", "N")]
    vectors.unlink()
    with pytest.raises(FileNotFoundError, match=r"embeddings: .*vectors\.npz is not there"):
        pplseq.load(tmp_path / "again")


def test_vectors_that_change_before_the_tagger_is_saved(vectors, tmp_path):
    tagger = make_tagger("crf", l2=0.1, templates=["digits[0]"], embeddings=str(vectors)).fit(TAGGED)
    np.savez(vectors, words=np.array(["a", "dog"]), embeddings=np.ones((2, 3)))
    tagger.save(tmp_path / "run")
    with pytest.raises(ValueError, match="is not what this tagger was trained with"):
        load_tagger(tmp_path / "run")


def test_states_of_a_model_on_disk(vocabulary, tmp_path):
    model = VLHMM(
        4, num_words=len(vocabulary), blocks=torch.arange(len(vocabulary)) % 2, hidden_size=4, reset_id=vocabulary.eos_id
    )
    model.vocabulary = vocabulary
    model.save(tmp_path / "model")
    saved = SavedColumns("states", tmp_path / "model", load_text_model)
    expected = PosteriorColumns(model, vocabulary)(SENTENCES)
    np.testing.assert_allclose(saved(SENTENCES).values, expected.values, atol=1e-6)
    assert saved.sparse and saved.num_columns == 4
    with pytest.raises(ValueError, match="holds a VLHMM; expected a run of `pplseq train text-lds`"):
        _ = SavedColumns("embeddings", tmp_path / "model", load_text_model).sparse


def test_columns_that_are_refused(vectors, tmp_path):
    with pytest.raises(ValueError, match="embeddings: the system 'hmm' has no such setting"):
        make_tagger("hmm", embeddings=str(vectors))
    with pytest.raises(ValueError, match="one kind of columns"):
        make_tagger("crf", embeddings=str(vectors), states=str(vectors))
    with pytest.raises(FileNotFoundError, match="states: .* is not there; expected a run's folder"):
        make_tagger("crf", states=str(tmp_path / "none"))
    with pytest.raises(ValueError, match="got the file"):
        _ = SavedColumns("states", vectors, load_text_model).sparse
    np.savez(tmp_path / "tokens.npz", words=np.array(["a", "a"]), embeddings=np.zeros((2, 3)))
    np.savez(tmp_path / "other.npz", words=np.array(["a"]))
    for name, message in (("tokens.npz", "words more than once"), ("other.npz", "expected words and embeddings")):
        with pytest.raises(ValueError, match=message):
            _ = SavedColumns("embeddings", tmp_path / name, load_text_model).sparse


def test_columns_of_files_when_systems_are_compared(tmp_path):
    (tmp_path / "train.txt").write_text("x a D\ny b N\n\ny b N\nx a D\n\n" * 4)
    (tmp_path / "test.txt").write_text("v b N\nw a D\n\n")
    given = ("--systems", "hmm,crf", "--format", "columns", "--column", 2, "--word-columns", 1, "--per-tag")
    shown = run("tag", "compare", tmp_path / "train.txt", tmp_path / "test.txt", *given).stdout
    crf = next(line for line in shown.splitlines() if line.startswith("crf"))
    assert crf.split()[1] == "1.0000"
    head = shown.index("F1 of tag")
    assert shown[head:].splitlines()[0].split()[-2:] == ["hmm", "crf"] and "1.0000" in shown[head:]
    refused = run("tag", "compare", tmp_path / "train.txt", tmp_path / "test.txt", "--word-columns", "0,x", code=2)
    assert "--word-columns: expected numbers of columns" in refused.stderr
