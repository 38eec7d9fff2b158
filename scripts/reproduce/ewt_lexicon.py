"""What a lexicon is worth on UD English-EWT, universal tags: taggers of the first sentences of train, with and without the tags
of the words in its other sentences as a lexicon; accuracy of all, known and unknown words of the development part.

    python scripts/reproduce/ewt_lexicon.py
    python scripts/reproduce/ewt_lexicon.py --num-sentences 300 --systems latent

"strength 1" takes a listing for one sighting, "features" is a CRF that is not limited to the listed tags. Written to
results/ewt_lexicon.json.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "bench"))
from record import data_folder, record  # noqa: E402

SYSTEMS = ("hmm", "enhanced", "latent", "latent-product", "crf l2=0.3", "memm l2=0.3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-sentences", type=int, default=1000, help="with tags")
    parser.add_argument(
        "--systems", nargs="+", default=SYSTEMS, metavar="SYSTEM", help="and options, as in ewt_tagging.py"
    )
    options = parser.parse_args()

    import torch
    from ewt_tagging import parts_of

    from pplseq.data.columns import read_conllu
    from pplseq.models.taggers.lexicon import TagDictionary
    from pplseq.models.taggers.scores import score_tags, training_words
    from pplseq.recipes.taggers.systems import make_tagger

    torch.set_num_threads(1)
    train, dev = (
        list(read_conllu(data_folder() / "ud_english_ewt" / f"en_ewt-ud-{part}.conllu")) for part in ("train", "dev")
    )
    tagged = train[: options.num_sentences]
    entries = TagDictionary.from_sentences(train[options.num_sentences :]).entries
    lexicon = {word: sorted(tags) for word, tags in entries.items()}  # how often they have them is not told
    results: dict[str, dict] = {}
    for system in options.systems:
        name, settings = parts_of(system)
        free = {"lexicon_limits": False} if name in ("crf", "memm") else {"lexicon_strength": 1.0}
        ways = {"without": {}, "lexicon": {"lexicon": lexicon}}
        ways["features" if name in ("crf", "memm") else "strength 1"] = {"lexicon": lexicon, **free}
        for way, more in ways.items():
            tagger = make_tagger(name, **settings, **more).fit(tagged)
            scores = score_tags(dev, tagger.tag([sentence.words for sentence in dev]), training_words(tagged))
            row = {
                "all": scores.accuracy,
                "known": scores.known_words.accuracy,
                "unknown": scores.unknown_words.accuracy,
            }
            results.setdefault(system, {})[way] = {key: round(value, 4) for key, value in row.items()}
            print(system, way, results[system][way], flush=True)
    record(
        "ewt_lexicon", results, folder=".", num_sentences=options.num_sentences, words_of_lexicon=len(lexicon),
        protocol="UD English-EWT, gold tokens, development part; the lexicon has the words of the sentences without tags",
    )  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
