"""A model small enough to train for thousands of steps, and runs of it that can be compared to the bit."""

import json

import pyro
import torch
from pyro.infer import Trace_ELBO
from pyro.nn import PyroModule
from torch import nn

from pplseq.data.batches import StreamBatches
from pplseq.distributions.state import Belief
from pplseq.runs.checkpoint import TRAINING
from pplseq.runs.metrics_log import read_metrics
from pplseq.runs.settings import TrainSettings
from pplseq.runs.training import train

SETTINGS = TrainSettings(lr=0.05, epochs=3, validate_per_epoch=2, log_interval=3, patience=0)


class SmallChain:
    """The forward algorithm, and the two methods of a chain that training needs."""

    def __init__(self, start, move, emit, x, lengths, belief):
        log_probs = []
        for t in range(x.shape[1]):
            if t == 0:
                prior = start.expand(len(x), -1) if belief is None else torch.logsumexp(belief[..., None] + move, -2)
            else:
                prior = torch.logsumexp(belief[..., None] + move, -2)
            joint = prior + emit.T[x[:, t]]
            log_prob = joint.logsumexp(-1)
            seen = torch.ones_like(log_prob, dtype=torch.bool) if lengths is None else t < lengths
            log_probs.append(torch.where(seen, log_prob, 0.0))
            new = joint - log_prob[:, None]
            belief = new if belief is None else torch.where(seen[:, None], new, belief)
        self.log_probs, self.belief = torch.stack(log_probs).sum(0), belief

    def log_prob(self):
        return self.log_probs

    def filtered(self):
        return Belief(None, self.belief).detach()


class SmallHMM(PyroModule):
    """A dense HMM whose random noise on the logits stands for dropout: it draws from torch's generator."""

    def __init__(self, num_words, num_states=3, noise=0.1):
        super().__init__()
        torch.manual_seed(0)
        self.start = nn.Parameter(torch.randn(num_states))
        self.move = nn.Parameter(torch.randn(num_states, num_states))
        self.emit = nn.Parameter(torch.randn(num_states, num_words))
        self.noise = noise

    def chain_of(self, x, lengths, start):
        noise = self.noise * torch.randn_like(self.move) if self.training else 0.0
        tables = [table.log_softmax(-1) for table in (self.start, self.move + noise, self.emit)]
        return SmallChain(*tables, x, lengths, None if start is None else start.log_probs)

    def forward(self, x, lengths=None, start=None):
        self.chain = self.chain_of(x, lengths, start)
        with pyro.plate("sequences", x.shape[0]):
            pyro.factor("chain", self.chain.log_prob())

    def save(self, folder):
        (folder / "model.json").write_text(json.dumps(self.emit.tolist()))


def run(text, folder, *, settings=SETTINGS, batches=None, evaluate="valid", **options):
    model = SmallHMM(len(text.vocabulary))
    torch.manual_seed(1)
    x = torch.from_numpy(text.tokens[:40].astype("int64"))[None]

    def validation():
        model.eval()
        with torch.no_grad():
            return {"nats_per_token": float(-model.chain_of(x, None, None).log_prob()) / 40}

    batches = StreamBatches(text, 4, 5, shuffle="line", seed=2) if batches is None else batches
    evaluate = validation if evaluate == "valid" else evaluate
    history = train(model, batches, evaluate=evaluate, settings=settings, folder=folder, elbo=Trace_ELBO(), **options)
    return model, history


def numbers(path):
    """The records without what depends on the clock."""
    return [{k: v for k, v in r.items() if k not in ("seconds", "tokens_per_second")} for r in read_metrics(path)]


def same_weights(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def load_training(folder):
    header, tensors, *_ = TRAINING.read(folder)
    return tensors, header["state"]
