"""A tiny model whose words try to break out of the page, and lines of its training."""

import torch

from pplseq.models import VLHMM

NASTY = ("<script>alert(1)</script>", "a&b", '"quoted"', "$x$", "שלום", "日本", "'s", "</style>")
WORDS = ("<eos>", "<unk>", "the", *NASTY, "cat")
BLOCKS = (0, 1, 1, 2, 2, 2, 3, 3, 3, 1, 2, 3)


def tiny_model(**options):
    """12 words in 4 blocks of 3 states, sharp enough that its posteriors are not flat."""
    torch.manual_seed(3)
    settings = dict(hidden_size=6, init_scale=1.5, state_dropout=0.3, reset_id=0) | options
    return VLHMM(12, num_words=len(WORDS), blocks=torch.tensor(BLOCKS), **settings).double().eval()


def records(steps=(20, 40, 60), validation=True):
    """Lines of a metrics.jsonl."""
    made = []
    for i, step in enumerate(steps):
        point = {"step": step, "epoch": 1, "lr": 0.1 / (1 + (i > 1)), "seconds": step / 10}
        made.append({"kind": "train", "nats_per_token": 3.0 - i / 2, "tokens_per_second": 1000.0 + i, **point})
        if validation:
            made.append({"kind": "validation", "protocol": "carried", "nats_per_token": 2.5 - i / 4 * (i < 2), **point})
    return made
