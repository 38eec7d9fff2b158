"""`pplseq tag` with a tagger whose answers can be had by hand."""

import json

import pytest
from support import toy_tagger
from support.commands import pplseq
from support.stored import rewrite
from support.toy_tagger import ToyTagger

from pplseq.data import TaggedSentence, read_tagged, write_tagged
from pplseq.models.taggers import TAGGERS
from pplseq.recipes.taggers import systems as tag_systems
from pplseq.recipes.taggers.systems import SYSTEMS, System, load_tagger

TRAIN = [
    TaggedSentence(("the", "dog", "barks"), ("D", "N", "V")),
    TaggedSentence(("the", "barks"), ("D", "N")),
    TaggedSentence(("a", "dog", "barks"), ("D", "N", "V")),
]
TEST = [TaggedSentence(("a", "barks", "?"), ("D", "N", "V")), TaggedSentence(("dog",), ("N",))]
CONLLU = """# text = can't bark
1-2\tcan't\t_\t_\t_\t_\t_\t_\t_\t_
1\tthe\tthe\tX\tXX\t_\t0\troot\t_\tSpaceAfter=No
2\tdog\tdog\t_\t_\t_\t1\tx\t_\t_
2.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_

"""


def lines_of(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture(autouse=True)
def toy_systems(monkeypatch):
    systems = {"hmm": "ToyTagger", "rules": "PlainTagger", "crfsuite": "Needy", "maxent": "Failing", "memm": "Absent"}
    for system, maker in systems.items():
        tagger = getattr(getattr(toy_tagger, maker, None), "name", "absent")
        monkeypatch.setitem(TAGGERS, tagger, f"support.toy_tagger:{maker}")
        monkeypatch.setitem(SYSTEMS, system, System(tagger, None, {}, ""))


@pytest.fixture
def files(tmp_path):
    write_tagged(tmp_path / "train.conllu", TRAIN)
    write_tagged(tmp_path / "test.conllu", TEST)
    return tmp_path


@pytest.fixture
def model(files):
    folder = files / "model"
    pplseq("train", "tagger", files / "train.conllu", "--system", "hmm", "--out", folder)
    return folder


# ---- train


def test_train(files):
    arguments = ("--out", files / "new" / "model", "--validation", files / "test.conllu", "--set", "weight=0.25")
    (summary,) = lines_of(pplseq("train", "tagger", files / "train.conllu", "--system", "hmm", *arguments))
    assert summary.pop("seconds") >= 0
    assert summary == {
        "run": str(files / "new" / "model"), "stop_reason": "finished", "steps": 1,
        "system": "hmm", "sentences": 3, "tokens": 8, "words": 4, "tags": 3,
        "dev_accuracy": 0.5,
    }  # fmt: skip
    saved = load_tagger(files / "new" / "model")
    assert isinstance(saved.tagger, ToyTagger) and saved.tagger.weight == 0.25
    assert (saved.system, saved.column, saved.format, saved.ambiguous) == ("hmm", "upos", "conllu", {"barks"})


def test_train_from_any_format_and_column(files):
    write_tagged(files / "train.txt", TRAIN, "word_tag", separator="/")
    given = (
        (files / "train.txt", "--format", "word_tag", "--separator", "/"),
        (files / "train.conllu",),
        ("-", "--format", "columns", "--column", "2"),
    )
    for n, arguments in enumerate(given):
        columns = "the x D\ndog x N\nbarks x V\n\nthe x D\nbarks x N\n\na x D\ndog x N\nbarks x V\n"
        pplseq("train", "tagger", *arguments, "--system", "hmm", "--out", files / str(n), input=columns)
        assert load_tagger(files / str(n)).tagger.counts == ToyTagger().fit(TRAIN).counts
    assert load_tagger(files / "2").columns == {"columns": 2, "tabs": 2}


def test_a_tagger_knows_where_its_words_stood(files):
    path = files / "numbered.txt"
    path.write_text("1\tNew York\tN\n2\tsleeps\tV\n\n1\tNew York\tN\n\n")
    options = ("--format", "tabs", "--word-column", 1, "--column", 2)
    pplseq("train", "tagger", path, "--system", "hmm", *options, "--out", files / "model")
    saved = load_tagger(files / "model")
    assert saved.word_column == 1 and saved.tagger.known_words == {"New York", "sleeps"}
    assert pplseq("tag", "run", files / "model", path, "--format", "tabs").stdout == path.read_text()
    assert "expected another number" in pplseq("tag", "run", files / "model", path, *options[:4], "--column", 1, code=2).stderr
    (files / "columns.txt").write_text("1 sleeps V\n2 sleeps V\n")  # columns of other files are counted alike
    found = lines_of(pplseq("tag", "eval", files / "model", files / "columns.txt", "--format", "columns", "--json"))
    assert (found[0]["known"]["correct"], found[0]["known"]["num"]) == (2, 2)
    (files / "words.txt").write_text("sleeps\n")  # and others have none
    assert pplseq("tag", "run", files / "model", files / "words.txt").stdout == "sleeps_V\n"
    assert pplseq("tag", "run", files / "model", files / "test.conllu").stdout.startswith("1\ta\t_\tN\t")


@pytest.mark.parametrize("text", ["-", "words.txt"])
def test_columns_are_written_where_those_of_the_training_stood(files, text):
    (files / "first.txt").write_text("V sleeps\nN dogs\n\n")
    options = ("--format", "columns", "--word-column", 1, "--column", 0)
    pplseq("train", "tagger", files / "first.txt", "--system", "hmm", *options, "--out", files / "model")
    (files / "words.txt").write_text("sleeps\n")
    run = ("tag", "run", files / "model", text if text == "-" else files / text)
    assert pplseq(*run, "--to", "columns", input="sleeps\n").stdout == "V sleeps\n\n"
    for chosen in (("--column", 0), ("--word-column", 1)):
        refused = pplseq(*run, "--format", "words", *chosen, input="sleeps\n", code=2).stderr
        assert f"{chosen[0]}: " in refused and "'words'" in refused


def test_columns_are_known_by_their_names(files):
    """Of CoNLL-U Plus, which has them in any order, and CoNLL-U alike."""
    rows = {"ID": "1", "FORM": "rome", "NER": "LOC", "UPOS": "PROPN", "FEATS": "X=1"}

    def plus(*names):
        return f"# global.columns = {' '.join(names)}\n" + "\t".join(rows[name] for name in names) + "\n\n"

    path = files / "file.conllup"
    path.write_text(plus("ID", "FORM", "NER", "UPOS") * 2)
    pplseq("train", "tagger", path, "--system", "hmm", "--column", "ner", "--out", files / "ner")
    other = plus("ID", "FORM", "UPOS", "NER")
    path.write_text(other.replace("LOC", "_"))
    assert pplseq("tag", "run", files / "ner", path).stdout == other
    refused = pplseq("tag", "run", files / "ner", files / "test.conllu", code=2)
    assert "column: expected one of lemma, upos" in refused.stderr and "got 'ner'" in refused.stderr
    path.write_text(plus("ID", "FORM", "FEATS", "UPOS"))
    pplseq("train", "tagger", path, "--system", "hmm", "--column", "feats", "--out", files / "feats")
    path.with_suffix(".conllu").write_text("1\trome" + "\t_" * 8 + "\n\n")
    found = pplseq("tag", "run", files / "feats", path.with_suffix(".conllu")).stdout
    assert found == "1\trome\t_\t_\t_\tX=1" + "\t_" * 4 + "\n\n"


def test_words_without_tags(files):
    arguments = ("train", "tagger", "-", "--system", "hmm", "--format", "columns", "--out", files / "model")
    failed = pplseq(*arguments, input="a X\nb _\n", code=2)
    assert "\nError: <stdin>, line 2: no tag of the word 'b' in column 1 (counted from 0); the system hmm" in failed.stderr
    assert "--system semi-supervised, partly-tagged, dictionary, unsupervised" in failed.stderr
    pplseq(*arguments, "--partial", input="a X\nb _\n")
    assert load_tagger(files / "model").tagger.known_words == {"a", "b"}


def test_broken_training_text(files):
    path = files / "broken.conllu"
    path.write_text((files / "train.conllu").read_text().replace("\tdog", " dog", 1))
    failed = pplseq("train", "tagger", path, "--system", "hmm", "--out", files / "model", code=2)
    told = failed.stderr.splitlines()[-1]
    assert told.startswith(f"Error: {path}, line 2: expected 10 columns between tabs (CoNLL-U), got 9: '2 dog")
    assert not (files / "model").exists()
    result = pplseq("train", "tagger", path, "--system", "hmm", "--out", files / "model", "--on-error", "skip")
    assert json.loads(result.stdout)["sentences"] == 2
    told = [line for line in result.stderr.splitlines() if "skipped" in line]
    assert told[0].startswith(f"{path}: skipped lines 1 to 3: line 2: expected 10 columns")
    assert told[1] == f"{path}: 1 skipped, 2 sentences read"


def test_refused_to_train(files):
    def error(system, *arguments):
        arguments = ("train", "tagger", files / "train.conllu", "--system", system, "--out", files / "model", *arguments)
        return pplseq(*arguments, code=2).stderr

    assert "system 'hmm' has no such setting. Did you mean 'weight'?" in error("hmm", "--set", "wieght=1")
    assert "expected NAME=VALUE, got 'weight'" in error("hmm", "--set", "weight")
    assert 'pip install "pplseq[tagging]"' in error("crfsuite")
    assert error("maxent").endswith("\nError: sentences: too few\n")
    assert "system must be one of" in error("hnm") and "Did you mean 'hmm'" in error("hnm")
    assert "toy_tagger has no Absent" in error("memm")
    assert not (files / "model").exists()


def test_other_folders_are_not_replaced(files, model):
    arguments = ("train", "tagger", files / "train.conllu", "--system", "rules", "--out")
    assert "is not empty and holds no run" in pplseq(*arguments, files, code=2).stderr
    assert (files / "test.conllu").exists()
    assert "already holds a run" in pplseq(*arguments, model, code=2).stderr
    assert load_tagger(model).system == "hmm"
    (files / "empty").mkdir()
    pplseq(*arguments, files / "empty")


def test_presets_and_options(monkeypatch):
    make = tag_systems.make_tagger
    monkeypatch.setattr(ToyTagger, "heavy", classmethod(lambda cls, weight=9: cls(weight)), raising=False)
    monkeypatch.setattr(ToyTagger, "fixed", classmethod(lambda cls: cls(7)), raising=False)
    monkeypatch.setitem(SYSTEMS, "tnt", System("toy", "heavy", {"weight": 3}, ""))
    monkeypatch.setitem(SYSTEMS, "enhanced", System("toy", "fixed", {}, ""))
    assert make("tnt").weight == 3 and make("tnt", weight=2).weight == 2
    tagger = make("enhanced", rate=0.5)
    assert (tagger.weight, tagger.settings.rate, make("enhanced").settings.rate) == (7, 0.5, 1.0)
    with pytest.raises(ValueError, match="height: the system 'enhanced' has no such setting. Did you mean 'weight'?"):
        make("enhanced", height=1)
    assert tag_systems.parse_settings(("a=1", "b-c=[1, 2]", "d=word", "e=null", "f==")) == {
        "a": 1, "b_c": [1, 2], "d": "word", "e": None, "f": "=",
    }  # fmt: skip


def test_every_system_is_a_tagger():
    assert {system.tagger for system in SYSTEMS.values()} <= set(TAGGERS)
    assert set(tag_systems.COMPARED) < set(SYSTEMS)


@pytest.mark.parametrize("system", ["trigram", "tnt", "enhanced", "plain", "crf", "most-frequent"])
def test_real_systems(files, system):
    options = ("--set", "max_iterations=3") if system == "crf" else ()
    pplseq("train", "tagger", files / "train.conllu", "--system", system, "--out", files / "model", *options)
    assert pplseq("tag", "run", files / "model", input="a dog barks\n\nthe barks\n").stdout.startswith(
        "a_D dog_N barks_V\n\n"
    )
    (found,) = lines_of(pplseq("tag", "eval", files / "model", files / "test.conllu", "--json"))
    assert (found["known"]["num"], found["unknown"]["num"], found["ambiguous"]["num"]) == (3, 1, 1)
    if system not in ("most-frequent", "plain"):  # of which the best taggings with a new word are several
        (found,) = lines_of(pplseq("tag", "run", files / "model", "--num-paths", 2, "--entropy", input="a new dog\n"))
        assert found["n_best"][0]["tags"] == found["tags"] and found["entropy"] > 0


# ---- run


def test_run_writes_what_it_read(model):
    result = pplseq("tag", "run", model, "--format", "conllu", input=CONLLU)
    assert result.stdout == CONLLU.replace("\tX\t", "\tD\t").replace("dog\tdog\t_", "dog\tdog\tN")
    result = pplseq("tag", "run", model, "--probabilities", "--format", "conllu", input=CONLLU)
    assert "SpaceAfter=No|TagProb=0.7143\n" in result.stdout and "1\tx\t_\tTagProb=0.7143\n" in result.stdout
    result = pplseq("tag", "run", model, "--column", "xpos", "--format", "conllu", input=CONLLU)
    assert [s.tags for s in read_rows(result.stdout, 4)] == [("D", "N")]


def read_rows(text, column):
    rows = [line.split("\t") for line in text.splitlines() if line[:1].isdigit()]
    rows = [row for row in rows if row[0].isdecimal()]
    return [TaggedSentence(tuple(row[1] for row in rows), tuple(row[column] for row in rows))]


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("the dog\n\nbarks \u4e2d\u6587\n", (), "the_D dog_N\n\nbarks_V \u4e2d\u6587_D\n"),
        ("the_X dog\n", ("--format", "word_tag"), "the_D dog_N\n"),
        ("the_X dog_Y\n", ("--to", "columns", "--format", "word_tag"), "the D\ndog N\n\n"),
        ("the X O\ndog Y O\n", ("--format", "columns"), "the D O\ndog N O\n\n"),
        ("the\ndog\n", (), "the_D\ndog_N\n"),
        ("the dog 2004\nthe X 9\n", (), "the_D dog_N 2004_D\nthe_D X_D 9_D\n"),
        ("the\ndog\n", ("--format", "columns", "--probabilities"), "the D 0.7143\ndog N 0.7143\n\n"),
        ("the dog\n", ("--probabilities",), "the_D_0.7143 dog_N_0.7143\n"),
        ("dog\n", ("--to", "conllu", "--decoder", "posterior"), "1\tdog\t_\tN\t_\t_\t_\t_\t_\t_\n\n"),
    ],
)
def test_formats(model, text, options, expected):
    assert pplseq("tag", "run", model, *options, input=text).stdout == expected


def test_standard_input_is_words_unless_a_format_is_named(model, files):
    failed = pplseq("tag", "run", model, input=CONLLU, code=2)
    assert failed.stdout == "" and "look like CoNLL-U" in failed.stderr and "--format conllu" in failed.stderr
    (files / "text").write_text(CONLLU)
    assert "read as conllu, by its first lines" in pplseq("tag", "run", model, files / "text").stderr
    (files / "text.conllu").write_text(CONLLU)
    assert "read as" not in pplseq("tag", "run", model, files / "text.conllu").stderr


@pytest.mark.parametrize("to", [(), ("--to", "word_tag"), ("--out", "-", "--on-error", "skip")])
def test_tags_that_hold_the_separator_are_written_with_another(files, to):
    train = [TaggedSentence(("the", "dog"), ("_", "A=1|B/2")), TaggedSentence(("a", "dog"), ("_", "A=1|B/2"))]
    write_tagged(files / "feats.conllu", train, column="feats")
    pplseq("train", "tagger", files / "feats.conllu", "--column", "feats", "--system", "hmm", "--out", files / "feats")
    found = pplseq("tag", "run", files / "feats", *to, input="the dog\nx_y\n")
    assert found.stdout.splitlines()[0] == "the#_ dog#A=1|B/2" and found.stdout.count("x_y#") == 1
    assert found.stderr.count("# stands between words and tags") == 1
    (files / "tagged").write_text("the_X dog_Y\n")
    whole = pplseq("tag", "run", files / "feats", files / "tagged", "--format", "word_tag")
    assert whole.stdout == "the#_ dog#A=1|B/2\n"
    asked = pplseq("tag", "run", files / "feats", "--separator", "~", input="the\n")
    assert asked.stdout == "the~_\n" and asked.stderr == ""
    assert "stands between" not in pplseq("tag", "run", files / "feats", "--json", input="the\n").stderr


@pytest.mark.parametrize("text", ["", "\n", "\n\n"])
def test_nothing_to_tag(model, files, text):
    assert pplseq("tag", "run", model, "--html", files / "page.html", "--probabilities", input=text).stdout == text
    assert pplseq("tag", "run", model, "--entropy", input=text).stdout == ""
    assert "the file is empty" in pplseq("tag", "eval", model, "-", input=text, code=2).stderr


@pytest.mark.slow
def test_run_on_a_cluster(tmp_path):
    write_tagged(tmp_path / "train.conllu", TRAIN)
    pplseq("train", "tagger", tmp_path / "train.conllu", "--system", "latent", "--out", tmp_path / "run")
    text = "the dog barks\na dog\n" * 3
    alone = pplseq("tag", "run", tmp_path / "run", "--probabilities", input=text)
    shared = pplseq("tag", "run", tmp_path / "run", "--probabilities", "--cluster", "local:1", input=text)
    assert shared.stdout == alone.stdout and "1 worker; dashboard: http://" in shared.stderr


def test_run_to_a_file(model, files):
    pplseq("tag", "run", model, files / "test.conllu", "--out", files / "test.conllu")  # over itself
    assert read_tagged(files / "test.conllu")[0].tags == ("D", "V", "D")


def test_questions_are_answered_in_json(model, files):
    options = "--probabilities --top 2 --num-paths 2 --num-samples 3 --seed 1 --entropy --log-prob --surprising".split()
    found = lines_of(pplseq("tag", "run", model, *options, input="the barks\n\nnew\n"))
    assert [row["words"] for row in found] == [["the", "barks"], ["new"]]
    assert set(found[0]) == {
        "words", "tags", "probabilities", "alternatives", "n_best", "samples", "entropy", "log_prob", "surprisals",
        "most_surprising",
    }  # fmt: skip
    assert found[0]["n_best"][0]["prob"] == pytest.approx(found[0]["probabilities"][0] * found[0]["probabilities"][1])
    pplseq("tag", "run", model, "--json", "--out", files / "new" / "out.jsonl", input="the dog\n")
    assert json.loads((files / "new" / "out.jsonl").read_text()) == {"words": ["the", "dog"], "tags": ["D", "N"]}
    assert (
        "--to chooses a format" in pplseq("tag", "run", model, "--json", "--to", "columns", input="a\n", code=2).stderr
    )


def test_a_tagger_without_probabilities(files):
    pplseq("train", "tagger", files / "train.conllu", "--system", "rules", "--out", files / "plain")
    assert (
        pplseq("tag", "run", files / "plain", "--html", files / "page.html", input="the dog\n").stdout
        == "the_D dog_N\n"
    )
    assert "fainter" not in (files / "page.html").read_text().partition("</style>")[2]
    failed = pplseq("tag", "run", files / "plain", "--entropy", input="the dog\n", code=2)
    assert "entropy: the system 'toy-plain' does not give an entropy" in failed.stderr


def test_run_skips_broken_sentences(model):
    broken = CONLLU + "1\tx\n\n" + CONLLU
    failed = pplseq("tag", "run", model, "--on-error", "raise", "--format", "conllu", input=broken, code=2)
    assert "<stdin>, line 7: expected 10 columns" in failed.stderr and failed.stdout == ""
    lines = pplseq("tag", "run", model, "--json", "--format", "conllu", input=broken, code=1).stdout.splitlines()
    assert [list(json.loads(line)) for line in lines] == [["words", "tags"], ["line", "error"], ["words", "tags"]]
    assert pplseq("tag", "run", model, "--format", "conllu", input=broken, code=1).stdout.count("# text") == 2
    result = pplseq("tag", "run", model, "--format", "conllu", "--on-error", "skip", input=broken)
    assert result.stdout.count("\tthe\tD\t") == result.stdout.count("# text") == 2
    assert result.stderr.startswith("<stdin>: skipped line 7: line 7: expected 10 columns")


def test_tags_of_another_set_are_noted_when_written_over(model):
    noted = pplseq("tag", "run", model, "--format", "word_tag", input="the_X dog_Y\n")
    assert "Note: the model is one for another tag set" in noted.stderr
    assert pplseq("tag", "run", model, input="the dog\n").stderr == ""


def test_page_of_run(model, files):
    pplseq("tag", "run", model, "--html", files / "new" / "page.html", "--max-sentences", 1, input="the dog\nnew\n")
    page = (files / "new" / "page.html").read_text()
    assert "The first 1 of 2 sentences." in page and "D 71%, N 14%, V 14%" in page and "<bdi>new" not in page


def test_long_sentence(model):
    text = " ".join(["the", "dog"] * 2500)
    assert pplseq("tag", "run", model, input=text + "\n").stdout == " ".join(["the_D", "dog_N"] * 2500) + "\n"


# ---- eval


def test_eval(model, files):
    output = pplseq("tag", "eval", model, files / "test.conllu").stdout
    assert "all words          0.5000      2   4" in output and "unknown words      0.0000      0   1" in output
    assert "ambiguous words    0.0000      0   1" in output
    assert output.splitlines()[-2].split()[:3] == ["N", "V", "1"]
    (found,) = lines_of(pplseq("tag", "eval", model, files / "test.conllu", "--json"))
    assert found["all"] == {"accuracy": 0.5, "correct": 2, "num": 4}
    assert found["confusions"][0] == {"gold": "N", "predicted": "V", "count": 1, "words": [["barks", 1]]}


def test_eval_writes_pages(model, files):
    pplseq("tag", "eval", model, files / "test.conllu", "--html", files / "new" / "p.html")
    page = (files / "new" / "p.html").read_text()
    assert (
        "All sentences with errors." in page
        and "Confusion matrix" in page
        and "<bdi>barks</bdi>" in page
        and "<s>V" in page
        and "<bdi>dog" not in page
    )


def test_eval_against_another(model, files):
    pplseq("train", "tagger", files / "test.conllu", "--system", "rules", "--out", files / "better")
    result = pplseq("tag", "eval", model, files / "test.conllu", "--against", files / "better")
    assert f"{files / 'better'}: accuracy 1.0000" in result.stdout
    assert "right in both 2; only in" in result.stdout and "McNemar's test: p = 0.50" in result.stdout
    (found,) = lines_of(pplseq("tag", "eval", model, files / "test.conllu", "--against", files / "better", "--json"))
    assert found["against"]["mcnemar"]["num_second"] == 2


def test_eval_of_tags_never_seen(model):
    output = pplseq("tag", "eval", model, "-", input="the_D dog_N mews_Q\n").stdout
    assert "tags that the model has not seen in training, always wrong: Q 1" in output
    failed = pplseq("tag", "eval", model, "-", input="the_X dog_Y\n", code=2).stderr
    assert (
        "the model is one for another tag set: it knows the tags of only 0% of the words. Its tags are D N V;" in failed
    )
    assert (
        "words without a gold tag"
        in pplseq("tag", "eval", model, "-", "--format", "columns", input="a D\nb _\n").stdout
    )
    assert "at least one word with a tag" in pplseq("tag", "eval", model, "-", input="the dog\n", code=2).stderr


def test_eval_of_clusters(model, files):
    pytest.importorskip("sklearn")
    text = "the_X dog_Y barks_X\nthe_X dog_Y\n"
    page = files / "page.html"
    output = pplseq("tag", "eval", model, "-", "--clusters", "--html", page, input=text).stdout
    assert "all words          1.0000      5   5" in output and "homogeneity 1.0000" in output
    assert "All sentences with errors." in page.read_text() and 'class="wrong' not in page.read_text()
    found = json.loads(pplseq("tag", "eval", model, "-", "--clusters", "--json", input=text).stdout)
    assert found["clusters"]["names"] == {"D": "X", "N": "Y", "V": "X"} and found["clusters"]["many_to_one"] == 1.0


def test_folders_that_hold_no_tagger(model, files):
    def error(folder):
        return pplseq("tag", "eval", folder, files / "test.conllu", code=2).stderr

    assert "no " in error(files / "nowhere")
    rewrite(model / "last", training=None)  # as one saved from Python
    (found,) = lines_of(pplseq("tag", "eval", model, files / "test.conllu", "--json"))
    assert found["unknown"]["num"] == 1 and "ambiguous" not in found
    rewrite(model / "last", model="hmm")
    assert "no tagger" in error(model)
    for content, message in (
        ("{", "not readable as JSON"),
        ("[]", "was not written by"),
        ('{"format": "pplseq", "version": 9}', "format version 9"),
    ):
        (model / "last" / "config.json").write_text(content)
        assert message in error(model)


# ---- compare


def test_compare(files):
    arguments = ("tag", "compare", files / "train.conllu", files / "test.conllu", "--out", files / "out.json")
    result = pplseq(*arguments, "--systems", "hmm,crfsuite,rules")
    lines = result.stdout.splitlines()
    assert [line.split()[:2] for line in lines[2:4]] == [["hmm", "0.5000"], ["rules", "0.5000"]]
    assert lines[4:] == ["", 'crfsuite: nothing works without "nothing": pip install "pplseq[tagging]"']
    assert "crfsuite         not there: nothing" in result.stderr
    found = json.loads((files / "out.json").read_text())
    assert found["systems"]["crfsuite"]["missing"] and found["systems"]["hmm"]["all"]["num"] == 4
    result = pplseq(*arguments, "--systems", "maxent,hmm", "--limit", 1, code=1)
    assert "maxent: ValueError: sentences: too few" in result.stdout and "hmm" in result.stdout


def test_learning_curves(files):
    arguments = ("tag", "compare", files / "train.conllu", files / "test.conllu", "--systems", "hmm,crfsuite")
    pytest.importorskip("matplotlib")
    drawing = ("--plot", files / "curve.png", "--out", files / "out.json")
    output = pplseq(*arguments, "--learning-curve", "0.4,1", *drawing).stdout
    assert output.splitlines()[-1].split()[:3] == ["3", "8", "0.5000"]
    assert (files / "curve.png").read_bytes()[:4] == b"\x89PNG"
    curve = json.loads((files / "out.json").read_text())["learning_curves"]["hmm"]
    assert [point["num_sentences"] for point in curve] == [1, 3]
    assert "--plot draws the learning curves" in pplseq(*arguments, "--plot", "x.png", code=2).stderr
    assert "expected numbers between commas" in pplseq(*arguments, "--learning-curve", "x", code=2).stderr
    assert "fractions: expected" in pplseq(*arguments, "--learning-curve", "2", code=2).stderr


def test_refused_to_compare(files):
    arguments = ("tag", "compare", files / "train.conllu", files / "test.conllu", "--systems")
    assert "no system 'hnm'. Did you mean 'hmm'?" in pplseq(*arguments, "hmm,hnm", code=2).stderr
    assert "--systems: expected names" in pplseq(*arguments, ",", code=2).stderr


def test_places_that_cannot_be_written_are_refused_before_the_work(files, model):
    blocked = files / "file"
    blocked.write_text("x")
    train = files / "train.conllu"
    pplseq("train", "tagger", train, "--system", "hmm", "--out", ".", code=2)
    pplseq("train", "tagger", train, "--system", "hmm", "--out", blocked / "tagger", code=2)
    for arguments in (
        ("compare", train, train, "--systems", "hmm", "--out", blocked / "table.json"),
        ("eval", model, train, "--html", blocked / "page.html"),
    ):
        result = pplseq("tag", *arguments, code=1)
        assert "Error" in result.output and not result.stdout


def test_a_lexicon_from_the_command_line(files):
    """A word of the lexicon alone has the tag that is listed; a system that takes none says so."""
    (files / "words.txt").write_text("zorks D\n")
    arguments = ("train", "tagger", files / "train.conllu", "--lexicon", files / "words.txt", "--out")
    pplseq(*arguments, files / "run", "--system", "enhanced")
    assert pplseq("tag", "run", files / "run", input="zorks\n").stdout.split() == ["zorks_D"]
    refused = pplseq(*arguments, files / "other", "--system", "rules", code=2).stderr
    assert "lexicon: the system 'rules' has no such setting" in refused
