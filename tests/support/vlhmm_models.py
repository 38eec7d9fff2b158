"""Very large HMMs of every option, and their tables and likelihood by hand."""

import math

import torch

from pplseq.models import VLHMM

BLOCKS = torch.tensor([0, 1, 1, 0, 2, 2])  # V = 6
SIZES = [2, 3, 1]

OPTIONS = {
    "independent": dict(),
    "untied": dict(tied=False),
    "shared layer": dict(shared_layer=True),
    "factored": dict(parameterization="factored"),
    "factored, untied": dict(parameterization="factored", tied=False),
    "scalar": dict(parameterization="scalar"),
    "xavier": dict(initialization="xavier"),
    "temperature": dict(temperature=2.5),
    "scalar with temperature": dict(parameterization="scalar", temperature=0.5),
    "uneven": dict(states_per_block=SIZES),
    "uneven, factored": dict(states_per_block=SIZES, parameterization="factored"),
    "uneven, scalar": dict(states_per_block=SIZES, parameterization="scalar"),
    "no blocks": dict(blocks=None),
    "reset": dict(reset_id=3),
    "reset, no blocks": dict(reset_id=3, blocks=None),
    "reset, scalar": dict(reset_id=3, parameterization="scalar"),
    "one state a block": dict(num_states=3),
}
HIERARCHICAL = (
    "independent", "untied", "factored", "scalar", "temperature", "scalar with temperature", "uneven", "uneven, factored",
    "uneven, scalar", "no blocks", "reset", "reset, no blocks", "reset, scalar", "one state a block",
)  # fmt: skip
OPTIONS |= {f"hierarchical, {option}": OPTIONS[option] | dict(transition="hierarchical") for option in HIERARCHICAL}


def make(option="independent", **more) -> VLHMM:
    torch.manual_seed(7)
    given = {"num_states": 6, "blocks": BLOCKS, "hidden_size": 6, "init_scale": 1.0, **OPTIONS[option], **more}
    return VLHMM(num_words=6, **given).double()


def residual(layer, x):
    u = torch.relu(layer.first(x))
    return layer.norm(torch.relu(layer.second(u)) + u)


def tables_by_hand(model, kept=None):
    """(initial (Z,), matrix (Z, Z), emission (Z, V)) from the parameters, as the paper writes them."""
    config, z = model.config, model.num_states
    blocks = model.block_of_word
    sizes = config["states_per_block"] or [z // (int(blocks.max()) + 1)] * (int(blocks.max()) + 1)
    block_of_state = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    closed = torch.zeros(z, dtype=torch.bool) if kept is None else ~kept
    same = blocks == block_of_state.unsqueeze(-1)
    if config["parameterization"] == "scalar":
        start, score = model.start_table, model.transition_table / config["temperature"]
        if config["transition"] == "hierarchical":
            of_block = model.block_table / config["temperature"]
        slot = torch.cat([torch.arange(size) for size in sizes])
        words = model.word_table[:, slot].T
    else:

        def embed(role):
            role = "all" if config["tied"] else role
            rows = model.states[role].weight
            if config["parameterization"] == "factored":
                rows = torch.cat([model.block_states[role].weight[block_of_state], rows], -1)
            return rows

        start_layer = model.emit_layer if config["shared_layer"] else model.start_layer
        start = model.start_score(residual(start_layer, embed("start"))).squeeze(-1)
        out = residual(model.out_layer, embed("out")) / config["temperature"]
        score = out @ embed("into").T
        if config["transition"] == "hierarchical":
            of_block = out @ model.block_score.weight.T + model.block_score.bias
        words = residual(model.emit_layer, embed("emit")) @ model.word_score.weight.T + model.word_score.bias
    initial = start.masked_fill(closed, -math.inf).log_softmax(-1)
    matrix = score.masked_fill(closed, -math.inf).log_softmax(-1)
    if config["transition"] == "hierarchical":
        of_block = of_block.log_softmax(-1)
        inner = [score[:, block_of_state == b].masked_fill(closed[block_of_state == b], -math.inf) for b in range(len(sizes))]
        matrix = torch.cat([part.log_softmax(-1) + of_block[:, b : b + 1] for b, part in enumerate(inner)], -1)
    return initial, matrix, words.masked_fill(~same, -math.inf).log_softmax(-1)


def log_prob_by_hand(model, tables, row, first=None):
    """log p of one row of seen words, by the forward loop."""
    initial, matrix, emission = tables
    after = [initial.expand_as(matrix) if word == model.reset_id else matrix for word in row[:-1].tolist()]
    matrices = torch.stack(after) if after else matrix.new_zeros(0, *matrix.shape)
    emit = emission.T[row]
    open_states = [~torch.isneginf(e) for e in emit]
    # closed states are cut out, so that autograd meets no -inf - -inf
    first = initial if first is None else first
    message = (first + emit[0])[open_states[0]]
    for t in range(1, len(row)):
        between = matrices[t - 1][open_states[t - 1]][:, open_states[t]]
        message = torch.logsumexp(message.unsqueeze(-1) + between, 0) + emit[t][open_states[t]]
    return torch.logsumexp(message, 0)


X = torch.tensor([[0, 3, 2, 5, 1], [3, 3, 4, 0, 2], [5, 1, 3, 0, 0]])
LENGTHS = torch.tensor([5, 4, 1])
