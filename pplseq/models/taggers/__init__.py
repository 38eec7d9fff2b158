"""Taggers: generative (from counts, with substates, from a dictionary) and conditional (CRF, MEMM)."""

from pplseq._lazy import Registry

# names in saved folders; `pplseq.baselines` registers its own
TAGGERS = Registry(
    "tagger",
    __name__,
    {
        "hmm-tagger": "hmm:HMMTagger",
        "latent-tagger": "latent:LatentTagger",
        "self-trained-tagger": "substates.self_training:SelfTrainedTagger",
        "partly-tagged-tagger": "substates.partly_tagged:PartlyTaggedTagger",
        "product-tagger": "substates.products:ProductTagger",
        "product-of-taggers": "substates.products:ProductOfTaggers",
        "crf-tagger": "conditional:CRFTagger",
        "memm-tagger": "conditional:MEMMTagger",
        "morphology-tagger": "morphology.tagger:MorphologyTagger",
        "dictionary-tagger": "dictionary:DictionaryTagger",
    },
)
