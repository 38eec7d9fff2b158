"""EM on a text in files, a part at a time: that of the same lines in memory."""

import gzip

import pytest
import torch

from pplseq import HMM, IOHMM, LDS, VLHMM
from pplseq.data import TextFiles
from pplseq.data.text import read_text
from pplseq.data.vocabulary import Vocabulary
from pplseq.models import fitting

pytestmark = pytest.mark.filterwarnings("default")  # Dask's own, where there is a cluster

LINES = ["the cat saw a dog", "", "a dog", "unheard words the cat", "", "the"] * 7
HOW = dict(seed=0, max_iterations=5, tolerance=0.0)


@pytest.fixture(params=[True, False], ids=["eos", "no eos"])
def vocabulary(request):
    return Vocabulary(tuple(["<unk>", "the", "cat", "saw", "a", "dog"] + ["<eos>"] * request.param))


@pytest.fixture
def path(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(LINES))
    return tmp_path / "text.txt"


def fitted(vocabulary, x, **more):
    torch.manual_seed(0)
    model = HMM(3, num_words=len(vocabulary)).double()
    return model.fit(x, **HOW, **more)


@pytest.mark.parametrize("part_bytes", [1, 60, 10**6])
def test_the_numbers_of_memory(vocabulary, path, part_bytes, monkeypatch):
    monkeypatch.setattr(fitting, "PART_STEPS", 11)  # so that a part is several batches
    files = TextFiles(path, vocabulary, part_bytes=part_bytes)
    memory = [row.tolist() for row in read_text(path, vocabulary).lines() if len(row)]
    found, expected = (fitted(vocabulary, x, warm_start=True) for x in (files, memory))
    assert found.history.log_likelihoods == pytest.approx(expected.history.log_likelihoods, rel=1e-10)
    assert found.history.num_tokens == expected.history.num_tokens
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=1e-8, atol=1e-10)


def test_on_a_cluster_and_in_a_folder(here, vocabulary, path, tmp_path):
    (tmp_path / "more.txt.gz").write_bytes(gzip.compress(b"The DOG saw\n"))
    files = TextFiles(tmp_path / "*.txt*", vocabulary, lower=True, part_bytes=100)
    alone, there = fitted(vocabulary, files), fitted(vocabulary, files, cluster=here)
    assert there.history.log_likelihoods == pytest.approx(alone.history.log_likelihoods, rel=1e-10)
    first = dict(HOW, max_iterations=2)
    HMM(3, num_words=len(vocabulary)).double().fit(files, **first, folder=tmp_path / "run", cluster=here)
    rest = fitted(vocabulary, files, folder=tmp_path / "run", resume=True)
    torch.testing.assert_close(rest.state_dict(), alone.state_dict(), rtol=1e-8, atol=1e-10)


def test_what_files_are_not_for(vocabulary, path, tmp_path):
    files = TextFiles(path, vocabulary)
    assert repr(files) == f"TextFiles({str(path)!r}, 1 parts, {len(vocabulary)} words)"
    with pytest.raises(ValueError, match="method: a text in files is learned by 'em', a part at a time; got 'sgd'"):
        HMM(3, num_words=len(vocabulary)).fit(files, method="sgd")
    for name, value in (("batch_size", 3), ("step_size", 0.7), ("lengths", [1]), ("states", [[0]])):
        with pytest.raises(ValueError, match=f"{name}: is about data in memory"):
            HMM(3, num_words=len(vocabulary)).fit(files, **{name: value})
    with pytest.raises(ValueError, match=f"x: its vocabulary has {len(vocabulary)} words, and the model is of 90 words"):
        HMM(3, num_words=90).fit(files)
    with pytest.raises(ValueError, match="and the model is of vectors"):
        LDS(2, 2).fit(files)
    for model in (VLHMM(num_states=4), IOHMM(2, num_symbols=2, num_outputs=2)):
        with pytest.raises((TypeError, ValueError), match="TextFiles"):
            model.fit(files)
    (tmp_path / "empty").write_text("")
    with pytest.raises(ValueError, match="the text is empty"):
        HMM(3, num_words=len(vocabulary)).fit(TextFiles(tmp_path / "empty", vocabulary))
    with pytest.raises(TypeError, match="vocabulary: expected a Vocabulary of the words, got list"):
        TextFiles(path, ["the"])
    with pytest.raises(FileNotFoundError):
        TextFiles(tmp_path / "absent", vocabulary)
