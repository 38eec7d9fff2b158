"""Products of taggers: the geometric mean of what each says, word by word."""

import numpy as np
import pytest
from support.tagged_toy import tagged_sentences

from pplseq.data.columns import TaggedSentence
from pplseq.models import CRFTagger, HMMTagger, LatentTagger, ProductOfTaggers
from pplseq.models.taggers.substates.products import ProductTagger
from pplseq.recipes.taggers.systems import load_tagger, make_tagger, train_tagger

TRAIN = tagged_sentences(30)
WORDS = [s.words for s in tagged_sentences(8, seed=1)] + [(), ("unseen",)]
SMALL = {"num_substates": 4, "max_iterations": 3, "min_count": 0}


def test_the_product_is_the_geometric_mean():
    product = ProductTagger(3, seed=5, **SMALL).fit(TRAIN)
    each = [LatentTagger(seed=seed, **SMALL).fit(TRAIN).smooth(WORDS) for seed in (5, 6, 7)]
    for words, found, *rows in zip(WORDS, product.smooth(WORDS), *each, strict=True):
        assert found.shape == (len(words), len(product.tags))
        for t in range(len(words)):
            mean = np.prod([row[t] for row in rows], axis=0) ** (1 / 3)
            np.testing.assert_allclose(found[t], mean / mean.sum(), rtol=1e-9, atol=1e-300)
    for tags, sure, rows in zip(product.tag(WORDS), product.confidence(WORDS), product.smooth(WORDS), strict=True):
        assert [product.tags[k] for k in rows.argmax(1)] == list(tags)
        np.testing.assert_array_equal(sure, [row.max() for row in rows])


def test_models_learn_from_another_text_as_if_alone():
    """What forms of words say is learned once for all models of a product, and of its own text."""
    other = [TaggedSentence(("qa", "qb", "za"), ("Q", "Q", "Z"))] * 3
    model = ProductTagger(2, **SMALL).fit(TRAIN).models[1].fit(other)
    alone = LatentTagger(seed=1, **SMALL).fit(other)
    assert model.tags == alone.tags
    np.testing.assert_array_equal(model.smooth([("qc", "za")])[0], alone.smooth([("qc", "za")])[0])


def test_members_that_come_to_other_tags_of_one_text_are_refused():
    text = [TaggedSentence(("a", "b", "c"), ("B-x", "I-x", "B-y"))] * 3
    members = HMMTagger(), CRFTagger(["word[0]"], spans="bio", max_iterations=1)  # which knows I-y, too
    for some in (members, members[::-1]):
        with pytest.raises(ValueError, match="same tags; only some of them know I-y, O"):
            ProductOfTaggers(some).fit(text)


def test_one_model_is_that_model():
    alone, product = LatentTagger(**SMALL).fit(TRAIN), ProductTagger(1, **SMALL).fit(TRAIN)
    assert product.tag(WORDS) == alone.tag(WORDS)
    np.testing.assert_allclose(product.smooth(WORDS)[0], alone.smooth(WORDS)[0], rtol=1e-9)
    assert product.get_params() == {"num_models": 1} | alone.get_params()
    with pytest.raises(ValueError, match="num_models"):
        ProductTagger(0)


def test_clusters_tell_the_tags_of_words_from_untagged_text(tmp_path):
    """Nothing in the letters of "qq" and "zz" tells, but they are in clusters of nouns and of verbs."""
    nouns, verbs = {"dog", "house", "station", "dogs", "nation", "qq"}, {"sees", "barks", "walked", "jumped", "zz"}
    paths = tmp_path / "clusters.paths"
    paths.write_text("".join(f"{'01' if word in nouns else '10'}\t{word}\t9\n" for word in sorted(nouns | verbs)))
    product = ProductTagger(2, clusters=str(paths), max_count=1000, form_l2=0.01, **SMALL).fit(TRAIN)
    product.save(tmp_path / "run")
    again = ProductTagger.load(tmp_path / "run")
    for tagger in (product, again, product.models[0], again.models[1]):
        noun, verb = (list(tagger.tags).index(tag) for tag in ("NOUN", "VERB"))
        (of_qq,), (of_zz,) = (tagger.smooth([(word,)])[0] for word in ("qq", "zz"))
        assert of_qq[noun] > 0.5 and of_zz[verb] > 10 * of_qq[verb]
    np.testing.assert_array_equal(product.smooth([("qq", "zz")])[0], again.smooth([("qq", "zz")])[0])
    (probs,) = LatentTagger(**SMALL).fit(TRAIN).smooth([("qq", "zz")])
    assert probs[0, product.tags.index("NOUN")] < product.smooth([("qq", "zz")])[0][0, product.tags.index("NOUN")]


def test_taggers_of_different_kinds(tmp_path):
    """Whatever the order of their tags; trained together or before."""
    latents, crf = ProductTagger(2, **SMALL), CRFTagger(l2=0.5)
    product = ProductOfTaggers([latents, crf]).fit(TRAIN)
    assert not latents.tags and not crf.tags, "copies are trained"
    crf_rows = crf.fit(TRAIN).smooth(WORDS)
    crf.smooth = lambda x: [rows[:, ::-1] for rows in crf_rows]
    crf.tags = crf.tags[::-1]
    for each in (product, ProductOfTaggers.of([latents.fit(TRAIN), crf])):
        for found, a, b in zip(each.smooth(WORDS), latents.smooth(WORDS), crf_rows, strict=True):
            mean = np.sqrt(a * b)
            np.testing.assert_allclose(found, mean / mean.sum(1, keepdims=True), rtol=1e-6, atol=1e-12)
    again = ProductOfTaggers.load(product.save(tmp_path / "run"))
    assert [type(model) for model in again.models] == [ProductTagger, CRFTagger]
    for got, expected in zip(again.smooth(WORDS), product.smooth(WORDS), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-12)


def test_members_that_are_none():
    with pytest.raises(TypeError, match="members: expected taggers that give probabilities"):
        ProductOfTaggers(["crf"])
    with pytest.raises(ValueError, match="at least one"):
        ProductOfTaggers().fit(TRAIN)
    with pytest.raises(RuntimeError, match="HMMTagger has seen no"):
        ProductOfTaggers.of([HMMTagger()])
    other = HMMTagger().fit([TaggedSentence(("a",), ("X",))])
    with pytest.raises(ValueError, match="only some of them know .*NOUN.*X"):
        ProductOfTaggers.of([HMMTagger().fit(TRAIN), other])


def test_the_system_gives_settings_to_the_members_that_have_them(tmp_path):
    clusters = {"dog": "01"}
    product = make_tagger("product", clusters=clusters, num_models=2)
    assert [type(member) for member in product.members] == [ProductTagger, CRFTagger]
    assert product.members[0].num_models == 2 and all(m.get_params()["clusters"] == clusters for m in product.members)
    chosen = make_tagger("product", members=["hmm", "crf l2=0.5 'pairs=all'"], column_scale=0.1)
    assert [m.get_params().get(k) for m, k in zip(chosen.members, ("order", "pairs"), strict=True)] == [1, "all"]
    with pytest.raises(ValueError, match="unheard_of: no member"):
        make_tagger("product", unheard_of=1)
    for members in ("crf", [], None, {"crf": 1}):
        with pytest.raises(ValueError, match="members: expected a list of systems, as JSON"):
            make_tagger("product", members=members)
    for member in ("", 'crf "'):
        with pytest.raises(ValueError, match="members: expected a system and its options, got"):
            make_tagger("product", members=[member])
    with pytest.raises(TypeError, match="l2 must be"):
        make_tagger("product", members=["crf l2=much"])
    vectors = tmp_path / "vectors.npz"
    words = sorted({word for sentence in TRAIN for word in sentence.words})
    np.savez(vectors, words=np.array(words), embeddings=np.eye(len(words)))
    saved, _ = train_tagger("product", TRAIN, folder=tmp_path / "run", members=["hmm", "crf l2=0.5"], embeddings=str(vectors))
    again = load_tagger(tmp_path / "run").tagger
    assert again.models[1].columns is not None and again.tag(WORDS) == saved.tagger.tag(WORDS)
