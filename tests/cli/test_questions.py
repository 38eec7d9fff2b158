"""`pplseq evaluate`, `query`, `cluster` and `info` against what the model itself says."""

import functools
import json
import math
import shutil

import numpy as np
import pytest
import torch
from support.commands import pplseq

from pplseq.data.text import read_text
from pplseq.models import VLHMM
from pplseq.runs import cost

EXAMPLE = "the cat sees a dog here"


def lines_of(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    nouns, verbs = "cat dog bird fish".split(), "sees likes finds".split()
    lines = [f"the {nouns[i % 4]} {verbs[(i * i) % 3]} a {nouns[(i // 3) % 4]}" + " here" * (i % 2) for i in range(200)]
    lines[::17] = ["a rare <unk> word"] * len(lines[::17])
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def run(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    options = "--num-states 40 --num-blocks 8 --hidden-size 8 --batch-size 4 --segment-length 12 --epochs 1 --device cpu"
    pplseq("train", "vlhmm", text, *options.split(), "--lr", "0.02", "--out", folder)
    return folder


@pytest.fixture(scope="module")
def trained(run):
    model = VLHMM.load(run / "best")
    return model, model.vocabulary


def log_prob(trained, words):
    model, vocabulary = trained
    return model.log_prob(torch.from_numpy(vocabulary.encode(words))[None]).item()


# ---- evaluate


def test_both_protocols_named_and_right(run, text, trained):
    model, vocabulary = trained
    whole = read_text(text, vocabulary)
    result = pplseq("evaluate", run, text, "--streams", "1,3")
    one, three, sentence = lines_of(result)
    assert [r["protocol"] for r in (one, three, sentence)] == ["carried", "carried", "sentence"]
    assert (one["num_streams"], three["num_streams"], sentence["num_streams"]) == (1, 3, whole.num_lines)
    assert all(r["num_tokens"] == whole.num_tokens and r["num_unknown"] == whole.num_unknown > 0 for r in (one, three))
    per_line = [model.log_prob(torch.from_numpy(line.astype("int64"))[None]).item() for line in whole.lines()]
    assert sentence["log_prob"] == pytest.approx(math.fsum(per_line), rel=1e-5)
    stream = model.log_prob(torch.from_numpy(whole.tokens.astype("int64"))[None]).item()
    assert one["log_prob"] == pytest.approx(stream, rel=1e-5)
    assert one["perplexity"] == pytest.approx(math.exp(-stream / whole.num_tokens), rel=1e-5)
    assert "carried" in result.stderr and "sentence" in result.stderr


@pytest.mark.parametrize("length", [1, 5, 32])
def test_the_segment_length_changes_nothing(run, text, length):
    expected = lines_of(pplseq("evaluate", run, text, "--protocol", "carried"))[0]
    found = lines_of(pplseq("evaluate", run, text, "--protocol", "carried", "--segment-length", length))[0]
    assert found["log_prob"] == pytest.approx(expected["log_prob"], rel=1e-5)


def test_log_probabilities_of_every_token(run, text, tmp_path):
    file = tmp_path / "tokens.tsv"
    carried, sentence = lines_of(pplseq("evaluate", run, text, "--per-token", file))
    header, *rows = [line.split("\t") for line in file.read_text().splitlines()]
    assert header == ["word", f"carried_{carried['num_streams']}", f"sentence_{sentence['num_streams']}"]
    words = [word for line in text.read_text().splitlines() for word in [*line.split(), "<eos>"]]
    assert [row[0] for row in rows] == words
    columns = np.array([row[1:] for row in rows], dtype=float)
    assert columns.sum(0) == pytest.approx([carried["log_prob"], sentence["log_prob"]], rel=1e-4)


def test_a_run_knows_its_own_data(run, text):
    own, named = pplseq("evaluate", run), pplseq("evaluate", run, text, "--split", "test")
    assert [r["log_prob"] for r in lines_of(own)] == [r["log_prob"] for r in lines_of(named)]


def test_a_word_never_seen_counts_as_unknown(run, tmp_path):
    file = tmp_path / "new.txt"
    file.write_text("the zebra sees a dog\n")
    score = lines_of(pplseq("evaluate", run, file, "--protocol", "sentence"))[0]
    assert (score["num_unknown"], score["num_tokens"]) == (1, 6)


def test_text_of_another_kind_is_remarked_on(run, tmp_path):
    file = tmp_path / "new.txt"
    file.write_text("lorem ipsum dolor sit amet\n")
    assert "unknown to the model" in pplseq("evaluate", run, file).stderr


def test_vocabulary_mismatch(run, text, tmp_path):
    same, other = run / "best" / "vocab.txt", tmp_path / "vocab.txt"
    pplseq("evaluate", run, text, "--vocabulary", same)
    other.write_text(same.read_text().replace("dog", "hog"))
    result = pplseq("evaluate", run, text, "--vocabulary", other, code=2)
    assert "vocabulary mismatch" in result.stderr and "differ from word" in result.stderr


@pytest.mark.parametrize("content,message", [(b"", "empty"), (b"a \xff b", "byte 2")])
def test_bad_text(run, tmp_path, content, message):
    file = tmp_path / "bad.txt"
    file.write_bytes(content)
    assert message in pplseq("evaluate", run, file, code=2).stderr


@pytest.mark.parametrize("damage", ["truncated", "foreign", "missing", "half"])
@pytest.mark.parametrize("command", [["evaluate"], ["query", "score"]])
def test_bad_model_folders(run, text, tmp_path, damage, command):
    folder = tmp_path / "model"
    shutil.copytree(run / "best", folder)
    if damage == "truncated":
        (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:200])
    elif damage == "foreign":
        (folder / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
    elif damage == "missing":
        shutil.rmtree(folder)
    else:
        (folder / "model.safetensors").unlink()
    result = pplseq(command[0], folder, *command[1:], text, code=2)
    assert result.stderr.startswith("Error: ") and str(folder) in result.stderr


# ---- query


def ask(run, question, *options, input=EXAMPLE, code=0):
    return lines_of(pplseq("query", run, question, *options, input=input, code=code))


def test_score(run, trained):
    answer = ask(run, "score")[0]
    assert answer["words"] == [*EXAMPLE.split(), "<eos>"]
    assert answer["log_prob"] == pytest.approx(log_prob(trained, answer["words"]), rel=1e-5)
    assert sum(answer["token_log_probs"]) == pytest.approx(answer["log_prob"], rel=1e-5)
    assert ask(run, "score", "--no-eos")[0]["words"] == EXAMPLE.split()


@pytest.mark.parametrize("gap", [False, True])
def test_filter_is_the_smoother_of_the_prefix(run, gap):
    words = [None if gap and t == 2 else word for t, word in enumerate(EXAMPLE.split())]
    filtered = ask(run, "filter", "--no-eos", "--top", 40, input=json.dumps({"words": words}))[0]["states"]
    for t in range(len(words)):
        prefix = json.dumps({"words": words[: t + 1]})
        smoothed = ask(run, "smooth", "--no-eos", "--top", 40, input=prefix)[0]["states"]
        expected = {entry["state"]: entry["prob"] for entry in smoothed[-1]}
        found = {entry["state"]: entry["prob"] for entry in filtered[t]}
        assert found == pytest.approx(expected, abs=1e-5)


def test_decode_samples_and_marginals_agree(run):
    paths = ask(run, "decode", "--num-paths", 3)[0]["paths"]
    assert ask(run, "decode")[0]["paths"][0]["states"] == paths[0]["states"]
    assert 1 >= paths[0]["prob"] >= paths[1]["prob"] >= paths[2]["prob"] > 0
    samples = np.array(ask(run, "sample", "--num-samples", 1500)[0]["samples"])
    share = np.mean(np.all(samples == paths[0]["states"], axis=1))
    assert share == pytest.approx(paths[0]["prob"], abs=0.05)
    smoothed = ask(run, "smooth")[0]["states"]
    for t, states in enumerate(smoothed):
        assert np.mean(samples[:, t] == states[0]["state"]) == pytest.approx(states[0]["prob"], abs=0.05)


def test_next_word_is_the_ratio_of_two_scores(run, trained):
    answer = ask(run, "next-word", "--top", 3, input="the cat")[0]
    before = log_prob(trained, ["the", "cat"])
    for entry in answer["next"]:
        expected = math.exp(log_prob(trained, ["the", "cat", entry["word"]]) - before)
        assert entry["prob"] == pytest.approx(expected, rel=1e-4)
    everything = ask(run, "next-word", "--top", 1000, input="the cat")[0]["next"]
    assert sum(entry["prob"] for entry in everything) == pytest.approx(1, abs=1e-5)


def test_first_word(run, trained):
    answer = ask(run, "next-word", "--top", 3, input='{"words": []}')[0]
    for entry in answer["next"]:
        assert entry["prob"] == pytest.approx(math.exp(log_prob(trained, [entry["word"]])), rel=1e-4)


def test_infill_is_bayes_rule_over_the_vocabulary(run, trained):
    _, vocabulary = trained
    answer = ask(run, "infill", "--top", 1000, input="the _ sees a dog")[0]
    scores = {w: log_prob(trained, ["the", w, "sees", "a", "dog", "<eos>"]) for w in vocabulary if w != "<eos>"}
    total = np.logaddexp.reduce(list(scores.values()))
    found = {entry["word"]: entry["prob"] for entry in answer["gaps"][0]["words"]}
    assert found == pytest.approx({w: math.exp(s - total) for w, s in scores.items()}, rel=1e-3, abs=1e-6)
    best = max(scores, key=scores.get)
    assert answer["filled"] == ["the", best, "sees", "a", "dog", "<eos>"]


def test_joint_draws_of_two_gaps(run, trained):
    _, vocabulary = trained
    answer = ask(run, "infill", "--top", 1000, "--num-samples", 3000, input="the cat _ _ dog")[0]
    pairs = [(a, b) for a in vocabulary for b in vocabulary if "<eos>" not in (a, b)]
    scores = [log_prob(trained, ["the", "cat", a, b, "dog", "<eos>"]) for a, b in pairs]
    probs = dict(zip(pairs, np.exp(scores - np.logaddexp.reduce(scores)), strict=True))
    best = max(probs, key=probs.get)
    share = np.mean([tuple(sample) == best for sample in answer["samples"]])
    assert share == pytest.approx(probs[best], abs=0.035)


def test_continuations(run, trained):
    options = ["--num-samples", 30, "--length", 6, "--no-unknown"]
    answer = ask(run, "continue", *options, input="the cat")[0]
    assert len(answer["continuations"]) == 30
    for row in answer["continuations"]:
        assert len(row["words"]) <= 6 and "<eos>" not in row["words"][:-1] and "<unk>" not in row["words"]
        expected = log_prob(trained, ["the", "cat", *row["words"]]) - log_prob(trained, ["the", "cat"])
        assert row["log_prob"] == pytest.approx(expected, abs=1e-3)
    assert ask(run, "continue", *options, input="the cat")[0] == answer
    assert ask(run, "continue", *options, "--seed", 1, input="the cat")[0] != answer


def test_cold_continuations_take_the_most_probable_word(run):
    greedy = ask(run, "continue", "--temperature", "1e-4", "--length", 1, input="the cat")[0]
    assert greedy["continuations"][0]["words"][0] == ask(run, "next-word", input="the cat")[0]["next"][0]["word"]
    assert ask(run, "continue", "--temperature", "1e-300", "--length", 1, input="the cat")[0] == greedy
    assert "temperature" in ask(run, "continue", "--temperature", "0", code=1)[0]["error"]


def test_continuations_from_nothing(run, trained):
    row = ask(run, "continue", input='{"words": []}')[0]["continuations"][0]
    assert row["log_prob"] == pytest.approx(log_prob(trained, row["words"]), abs=1e-3)


def test_one_broken_line_does_not_lose_the_rest(run):
    lines = [
        "the cat",
        "",
        '{"words": 3}',
        '{"text": "a dog", "id": "x"}',
        "{oops",
        '{"words": ["a", ""]}',
        "zebra cat",
    ]
    result = pplseq("query", run, "score", input="\n".join(lines).encode() + b"\n\xff\xfe\nthe dog\n", code=1)
    answers = lines_of(result)
    assert [answer["line"] for answer in answers] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert [answer["line"] for answer in answers if "error" in answer] == [3, 5, 6, 8]
    assert answers[1]["words"] == ["<eos>"]  # a blank line is a sentence without words
    assert answers[3]["id"] == "x"
    assert answers[6]["unknown"] == [0]
    assert "not UTF-8" in answers[7]["error"]


def test_no_line_ends_the_command(run):
    """Nesting that no parser follows, half a surrogate pair, a mark of byte order: answers like any other."""
    lines = ['{"words": ' + "[" * 100_000 + "}", '{"text": "\\ud800 cat"}', "\ufeffcat", "cat"]
    answers = ask(run, "score", input="\n".join(lines), code=1)
    assert [answer["line"] for answer in answers] == [1, 2, 3, 4] and "too many braces" in answers[0]["error"]
    assert answers[1]["words"] == ["\ud800", "cat", "<eos>"] and answers[1]["unknown"] == [0]
    assert answers[2]["words"] == answers[3]["words"]
    gaps = pplseq("query", run, "score", "--text", "--no-eos", input='{"words": [null, null]}\n').stdout
    assert "log p = 0.000 nats" in gaps or "log p = -0.000 nats" in gaps


def test_questions_from_python(run):
    from pplseq.recipes import query

    found = list(query(run, "next-word", ["the cat", '{"words": 3}'], top=2))
    assert found[0] == ask(run, "next-word", "--top", 2, input="the cat")[0]
    assert found[1]["line"] == 2 and "expected" in found[1]["error"]
    with pytest.raises(ValueError, match="vlhmm does not answer 'next'. Did you mean 'next-word'?"):
        list(query(run, "next", ["the"]))
    with pytest.raises(ValueError, match="score does not read 'top'"):
        list(query(run, "score", ["the"], top=3))


def test_options_of_other_questions_are_refused(run):
    message = pplseq("query", run, "score", "--num-paths", 3, input="the", code=2).stderr
    assert "--num-paths is an option of decode; score does not read it, leave it out" in message


def test_infill_without_a_gap(run):
    assert "words must have a gap" in ask(run, "infill", code=1)[0]["error"]


def test_a_vocabulary_without_an_unknown_word(run, tmp_path):
    from pplseq.data.vocabulary import Vocabulary

    model = VLHMM(4, num_words=4, hidden_size=4)
    model.vocabulary = Vocabulary(("<eos>", "a", "b", "c"))
    model.save(tmp_path / "model")
    answers = ask(tmp_path / "model", "score", input="a b\na zebra\n", code=1)
    assert "log_prob" in answers[0] and "'zebra' is not in the vocabulary" in answers[1]["error"]


@pytest.mark.parametrize("question", "score filter smooth decode sample next-word infill continue".split())
def test_for_people(run, question):
    output = pplseq("query", run, question, "--text", input="the _ sees a zebra\n" if question == "infill" else EXAMPLE)
    assert "{" not in output.stdout and len(output.stdout.splitlines()) > 1


def test_a_file_and_an_unknown_question(run, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("the cat\na dog\n")
    assert len(lines_of(pplseq("query", run, "score", file))) == 2
    assert "Did you mean 'smooth'?" in pplseq("query", run, "smoooth", code=2).stderr


# ---- cluster and info


def test_cluster(text, tmp_path):
    answer = lines_of(pplseq("cluster", text, "--num-clusters", 5, "--out", tmp_path / "c.paths"))[0]
    rows = [line.split("\t") for line in (tmp_path / "c.paths").read_text().splitlines()]
    assert answer["num_clusters"] == len({bits for bits, _, _ in rows}) == 5
    eos = next(bits for bits, word, _ in rows if word == "<eos>")
    assert [word for bits, word, _ in rows if bits == eos] == ["<eos>"]
    uniform = lines_of(pplseq("cluster", text, "--uniform", "--num-clusters", 5, "--out", tmp_path / "u.paths"))[0]
    assert uniform["mutual_information_bits"] < answer["mutual_information_bits"]


def test_clusters_of_counts(text, tmp_path):
    pplseq("count", text, "--max-lag", 1, "--out", tmp_path / "counts")
    answer = lines_of(pplseq("cluster", tmp_path / "counts", "--num-clusters", 5, "--out", tmp_path / "c.paths"))[0]
    rows = [line.split("\t") for line in (tmp_path / "c.paths").read_text().splitlines()]
    assert answer["num_clusters"] == 5 and answer["num_words"] == len(rows) and answer["mutual_information_bits"] > 0
    eos = next(bits for bits, word, _ in rows if word == "<eos>")
    assert [word for bits, word, _ in rows if bits == eos] == ["<eos>"]
    refused = pplseq("cluster", tmp_path / "counts", "--min-count", 2, "--out", tmp_path / "d.paths", code=2)
    assert "--min-count" in refused.stderr and "count again with it" in refused.stderr


def test_more_clusters_than_words(text, tmp_path):
    result = pplseq("cluster", text, "--num-clusters", 500, "--out", tmp_path / "c.paths", code=2)
    assert "500 blocks for" in result.stderr and not (tmp_path / "c.paths").exists()


def test_info(text):
    facts = json.loads(pplseq("info", "hmm", text, "--json").stdout)
    assert sum(split["num_lines"] for split in facts["splits"].values()) == 200
    assert facts["splits"]["train"]["longest_line"] == 7
    assert "estimate" not in facts
    assert "estimated" not in pplseq("info", "hmm", text).stdout


def test_info_estimates_the_cost(text, monkeypatch):
    monkeypatch.setattr(cost, "measure_speed", functools.cache(cost.measure_speed))  # of one machine
    facts = json.loads(pplseq("info", "vlhmm", text, "--num-states", 32768, "--threads", 1, "--json").stdout)["estimate"]
    assert facts["num_weights"] > 32768 * 256 and facts["step_seconds"] > 0
    output = pplseq("info", "vlhmm", text, "--num-states", 2048, "--threads", 1).stdout
    assert "memory, training" in output and "GFLOP" in output


def test_info_of_a_run(run, tmp_path):
    found = json.loads(pplseq("info", run, "--json").stdout)
    assert found["model"] == "vlhmm" and found["settings"]["num_states"] == 40 and "infill" in found["questions"]
    assert found["status"]["status"] == "finished" and found["best"]["perplexity"] > 1
    output = pplseq("info", run).stdout
    assert "  num states: 40\n" in output and "  perplexity: " in output and "{" not in output
    assert json.loads(pplseq("info", run / "best", "--json").stdout).keys() == {"run", "model", "questions"}
    assert "unknown model 'vlhm'. Did you mean 'vlhmm'?" in pplseq("info", "vlhm", code=2).stderr


def test_info_of_states_that_do_not_divide(text):
    result = pplseq("info", "vlhmm", text, "--num-states", 1000, code=2)
    assert "nearest sizes are 896 and 1024" in result.stderr


def test_lines_are_read_as_the_text_of_training_was(text, tmp_path):
    options = ["--num-states", 2, "--max-time", "60s", "--epochs", 1, "--lower", "--device", "cpu"]
    pplseq("train", "hmm", text, *options, "--out", tmp_path / "run")
    (tmp_path / "line.txt").write_text("The CAT sees\n")
    ask = ["query", tmp_path / "run", "score", tmp_path / "line.txt"]
    (read,), (raw,) = lines_of(pplseq(*ask)), lines_of(pplseq(*ask, "--no-lower"))
    assert read["words"][:2] == ["the", "cat"] and read["unknown"] == []
    assert raw["words"][:2] == ["The", "CAT"] and raw["unknown"] == [0, 1]
