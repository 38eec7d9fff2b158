"""States below tags: a hidden Markov model whose every tag is split into substates, learnt from tagged text by EM.

The tag of every word is known, so a word opens only the K substates of its tag: forward-backward costs K^2 a word, as in
block-sparse chains, with the tag as block. All sentences go through time together, scaled at every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pplseq.distributions.blocks import BlockLayout


class TaggedTokens(NamedTuple):
    """Tagged sentences as tokens by time, the longest sentence first; each ends with one token of the boundary.

    A symbol is a pair of a word and a tag. Tags are numbered 0..M-1, the last one is the boundary, as is the last symbol.

    Attributes:
        symbol, tag: (N,). pair: (N,) which of the pairs is the tag before and the tag.
        tag_of_symbol: (S,).
        steps: (T + 1,) where each time's tokens begin; rows of a sentence are its place in them.
        num_tags: M.
        pairs: (P, 2) the pairs of tags that follow each other somewhere, in order.
        by_pair: (N,) tokens sorted by pair. pair_sizes: (P,).
    """

    symbol: Tensor
    tag: Tensor
    pair: Tensor
    tag_of_symbol: Tensor
    steps: list[int]
    num_tags: int
    pairs: Tensor
    by_pair: Tensor
    pair_sizes: list[int]

    @classmethod
    def pack(cls, rows: Sequence[Sequence[int]], tag_of_symbol: Sequence[int] | Tensor) -> TaggedTokens:
        """From the symbols of each sentence, without boundaries; tag_of_symbol (S,) has the boundary's last."""
        tag_of_symbol = torch.as_tensor(tag_of_symbol)
        boundary = len(tag_of_symbol) - 1
        rows = sorted((list(row) + [boundary] for row in rows if len(row)), key=len, reverse=True)
        if not rows:
            raise ValueError("rows: expected at least one sentence with a word, got none")
        lengths = torch.tensor([len(row) for row in rows])
        padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], padding_value=-1)  # (T, B)
        valid = torch.arange(int(lengths[0]))[:, None] < lengths
        num_tags = int(tag_of_symbol[boundary]) + 1
        tags = tag_of_symbol[padded.clamp_min(0)]
        before = torch.cat([torch.full_like(tags[:1], num_tags - 1), tags[:-1]])
        seen, pair = (before * num_tags + tags)[valid].unique(return_inverse=True)
        pairs = torch.stack([seen // num_tags, seen % num_tags], -1)
        starts = torch.cat([torch.zeros(1, dtype=torch.long), valid.sum(1).cumsum(0)])
        sizes, order = torch.bincount(pair).tolist(), pair.argsort(stable=True)
        return cls(padded[valid], tags[valid], pair, tag_of_symbol, starts.tolist(), num_tags, pairs, order, sizes)

    def rows(self, t: int) -> slice:
        """The tokens at time t."""
        return slice(self.steps[t], self.steps[t + 1])

    def previous(self) -> Tensor:
        """(N,) the token before each; -1 at the first ones."""
        steps = torch.tensor(self.steps)
        sizes = steps.diff()
        start = torch.cat([torch.full((1,), -1), steps[:-2]]).repeat_interleave(sizes)
        own = torch.arange(len(self.symbol)) - steps[:-1].repeat_interleave(sizes)
        return torch.where(start < 0, -1, start + own)


class SubstateModel(NamedTuple):
    """Probabilities of substates, padded to K a tag with zeros.

    Pairs of tags that the text does not have are impossible, before EM and after it, so they take no room: of 321 tags with
    features of the English treebank 5,618 pairs occur, of 103,041.

    Attributes:
        transition: (P, K, K) p(next tag, substate | tag, substate): sums to one over a tag's pairs and next substates.
        emission: (S, K) p(symbol | substate of its tag).
        sizes: (M,) substates of each tag; the boundary has one.
        pairs: (P, 2) tags and next tags, in order; all others have probability 0.
    """

    transition: Tensor
    emission: Tensor
    sizes: Tensor
    pairs: Tensor

    @property
    def layout(self) -> BlockLayout:
        """The states as blocks, tag by tag."""
        return BlockLayout.from_sizes(self.sizes)

    @property
    def width(self) -> int:
        return self.transition.shape[-1]

    def matrix(self) -> Tensor:
        """(Z, Z) transitions between all states."""
        total = int(self.sizes.sum())
        slots = torch.arange(self.width)
        first = (self.sizes.cumsum(0) - self.sizes)[self.pairs]  # (P, 2) numbers of states
        inside = (slots < self.sizes[self.pairs].unsqueeze(-1)).unbind(1)  # (P, K) each
        kept = inside[0].unsqueeze(2) & inside[1].unsqueeze(1)
        row, column = (first[:, i, None] + slots for i in (0, 1))
        cells = (row * total).unsqueeze(2) + column.unsqueeze(1)
        full = self.transition.new_zeros(total * total)
        return full.index_copy_(0, cells[kept], self.transition[kept]).view(total, total)


class SubstateCounts(NamedTuple):
    """Expected counts given words and tags; the counts of a :class:`SubstateModel`'s entries.

    Attributes:
        log_prob: log p(words, tags) of all sentences, nats.
        transition: (P, K, K). emission: (S, K). pairs: (P, 2) of transitions.
        merge_loss: (M, K // 2) approximate loss of log_prob, nats, if substates 2 i and 2 i + 1 were one; or None.
    """

    log_prob: float
    transition: Tensor
    emission: Tensor
    pairs: Tensor
    merge_loss: Tensor | None = None


def filled_slots(sizes: Tensor, width: int) -> Tensor:
    """(M, K) True at slots that are substates."""
    return torch.arange(width) < sizes.unsqueeze(-1)


def supervised(tokens: TaggedTokens, dtype: torch.dtype = torch.float64) -> SubstateModel:
    """One substate a tag: relative frequencies."""
    transition = torch.tensor(tokens.pair_sizes, dtype=dtype).view(-1, 1, 1)
    symbols = torch.bincount(tokens.symbol, minlength=len(tokens.tag_of_symbol)).to(dtype).unsqueeze(-1)
    counts = SubstateCounts(0.0, transition, symbols, tokens.pairs)
    return maximise(counts, tokens.tag_of_symbol, torch.ones(tokens.num_tags, dtype=torch.long))


def maximise(counts: SubstateCounts, tag_of_symbol: Tensor, sizes: Tensor) -> SubstateModel:
    """The M-step: relative frequencies; the rows of a substate that nothing visits are 0."""
    before, nothing = counts.pairs[:, 0], counts.emission.new_zeros(len(sizes), counts.emission.shape[1])
    out = nothing.index_add(0, before, counts.transition.sum(-1))
    visits = nothing.index_add(0, tag_of_symbol, counts.emission)
    tiny = torch.finfo(out.dtype).tiny
    emission = counts.emission / visits.clamp_min(tiny)[tag_of_symbol]
    return SubstateModel(counts.transition / out.clamp_min(tiny)[before].unsqueeze(-1), emission, sizes, counts.pairs)


def expected_counts(model: SubstateModel, tokens: TaggedTokens, *, merge_loss: bool = False) -> SubstateCounts:
    """The E-step: forward-backward over the substates of each word's tag, all sentences at once.

    With out_t = p(z_t | words before), emit_t = p(word_t | z_t) / p(word_t | words before) and back_t = p(words after | z_t) /
    p(words after | words before and at t), over the substates of the tag, the posterior is out_t emit_t back_t.

    Args:
        merge_loss: also the approximate loss of merging siblings.

    Source: L. Rabiner (1989), A tutorial on hidden Markov models, section V A; Petrov et al. (2006), Learning accurate,
        compact, and interpretable tree annotation, section 2.3 (merging).
    """
    width, table = model.width, model.transition
    emit = model.emission[tokens.symbol]
    outside, filtered, back = torch.empty_like(emit), torch.empty_like(emit), torch.ones_like(emit)
    scale = emit.new_empty(len(emit))
    tiny = torch.finfo(emit.dtype).tiny
    start = emit.new_zeros(width)
    start[0] = 1.0
    message = start.expand(tokens.steps[1], width)
    num_steps = len(tokens.steps) - 1
    for t in range(num_steps):
        rows = tokens.rows(t)
        count = rows.stop - rows.start
        predicted = torch.bmm(message[:count].unsqueeze(1), table[tokens.pair[rows]]).squeeze(1)
        outside[rows] = predicted
        message = predicted * emit[rows]
        total = message.sum(-1).clamp_min_(tiny)
        message = message.div_(total.unsqueeze(-1))
        filtered[rows], scale[rows] = message, total
    emit /= scale.unsqueeze(-1)
    for t in range(num_steps - 1, 0, -1):
        rows, before = tokens.rows(t), tokens.steps[t - 1]
        inside = (emit[rows] * back[rows]).unsqueeze(-1)
        # the other rows had their last token at t - 1
        back[before : before + len(inside)] = torch.bmm(table[tokens.pair[rows]], inside).squeeze(-1)
    inside = emit * back
    previous = tokens.previous()[tokens.by_pair]
    left = torch.where((previous < 0).unsqueeze(-1), start, filtered[previous.clamp_min(0)])
    parts = zip(left.split(tokens.pair_sizes), inside[tokens.by_pair].split(tokens.pair_sizes), strict=True)
    transition = torch.stack([a.T @ b for a, b in parts]).mul_(table)
    posterior = outside * inside
    emission = torch.zeros_like(model.emission).index_add_(0, tokens.symbol, posterior)
    loss = _merge_loss(outside, emit, back, tokens) if merge_loss else None
    return SubstateCounts(float(scale.double().log_().sum()), transition, emission, tokens.pairs, loss)


def _merge_loss(outside: Tensor, emit: Tensor, back: Tensor, tokens: TaggedTokens) -> Tensor:
    """(M, K // 2) -sum over tokens of log p(words if siblings were one state at this token) / p(words).

    One state has the sum of both probabilities given the past, and the mean, by how often siblings are visited, of both
    probabilities of the word and of what follows. In a grammar the last two are one; here a word does not tell what follows.
    """
    posterior = outside * emit * back
    visits = posterior.new_zeros(tokens.num_tags, posterior.shape[1]).index_add_(0, tokens.tag, posterior)
    even, odd = slice(0, None, 2), slice(1, None, 2)
    both = visits[:, even] + visits[:, odd]
    share = (visits[:, even] / both.clamp_min(torch.finfo(both.dtype).tiny))[tokens.tag]
    word = share * emit[:, even] + (1 - share) * emit[:, odd]
    future = share * back[:, even] + (1 - share) * back[:, odd]
    change = (outside[:, even] + outside[:, odd]) * word * future - posterior[:, even] - posterior[:, odd]
    loss = -torch.log1p(change.clamp_min(-1 + 1e-6))
    return torch.zeros_like(both).index_add_(0, tokens.tag, loss)


# ------------------------------------------------------------------------------------------------ splitting and merging
def split(
    model: SubstateModel, tag_of_symbol: Tensor, *, noise: float = 0.1, seed: int = 0, which: Tensor | None = None
) -> SubstateModel:
    """Every substate of some tags becomes two neighbours that differ by noise.

    Args:
        noise: each probability is multiplied by a number between 1 - noise and 1 + noise, and rows are normalised again.
        which: (M,) the tags; None: all. The boundary has one substate always.
    """
    generator = torch.Generator().manual_seed(seed)
    which = torch.ones(len(model.sizes), dtype=torch.bool) if which is None else which.clone()
    which[-1] = False
    sizes = torch.where(which, 2 * model.sizes, model.sizes)
    slots = torch.arange(int(sizes.max()))
    # the slot that each new one is made of; those beyond a tag's size are emptied below
    source = torch.where(which.unsqueeze(-1), slots // 2, slots).clamp_max(model.width - 1)

    def shaken(value: Tensor, draws: Tensor) -> Tensor:
        return value * (1 + noise * (2 * draws - 1))

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=model.emission.dtype)

    num_tags, width = source.shape
    before, after = model.pairs.unbind(-1)
    transition = model.transition.gather(1, source[before].unsqueeze(2).expand(-1, -1, model.width))
    transition = transition.gather(2, source[after].unsqueeze(1).expand(-1, width, -1))
    transition = transition * torch.where(which, 0.5, 1.0).to(transition)[after, None, None]
    emission = model.emission.gather(1, source[tag_of_symbol])
    filled = filled_slots(sizes, width).to(transition.dtype)
    between = filled[before].unsqueeze(2) * filled[after].unsqueeze(1)
    # a draw for every pair, seen or not: a pair's noise is the same whatever others the text has
    following = after.split(torch.bincount(before, minlength=num_tags).tolist())
    draws = torch.cat([uniform(num_tags, width, width)[own] for own in following])
    transition, emission = shaken(transition, draws) * between, shaken(emission, uniform(*emission.shape))
    return maximise(SubstateCounts(0.0, transition, emission * filled[tag_of_symbol], model.pairs), tag_of_symbol, sizes)


def merge(
    counts: SubstateCounts, tag_of_symbol: Tensor, sizes: Tensor, share: float = 0.5
) -> tuple[SubstateModel, Tensor]:
    """Undoes the share of all splits whose loss is least.

    Args:
        counts: with merge_loss, of a model whose substates 2 i and 2 i + 1 are siblings.
        share: of splits to undo.

    Returns:
        The model of the added counts, and (M, K // 2) which siblings are one now.

    Source: Petrov, Barrett, Thibaux and Klein (2006), Learning accurate, compact, and interpretable tree annotation, 2.3.
    """
    width = counts.emission.shape[1]
    pairs = filled_slots(sizes, width)[:, 1::2]  # both siblings are there
    assert counts.merge_loss is not None, "counts: ask expected_counts for merge_loss"
    losses = counts.merge_loss[:, : pairs.shape[1]].masked_fill(~pairs, torch.inf)
    number = int(round(share * int(pairs.sum())))
    undone = torch.zeros_like(pairs)
    undone.view(-1)[losses.reshape(-1).argsort(stable=True)[:number]] = True
    # old slot -> new slot, tag by tag
    gone = torch.zeros(len(sizes), width, dtype=torch.bool)
    gone[:, 1 : 2 * pairs.shape[1] : 2] = undone
    target = (~gone).cumsum(-1) - 1
    new_sizes = sizes - undone.sum(-1)
    fold = torch.zeros(len(sizes), width, int(new_sizes.max()), dtype=counts.emission.dtype)
    filled = filled_slots(sizes, width)
    tag, slot = filled.nonzero(as_tuple=True)
    fold[tag, slot, target[tag, slot]] = 1.0
    before, after = counts.pairs.unbind(-1)
    transition = fold[before].transpose(1, 2) @ counts.transition @ fold[after]
    emission = torch.bmm(counts.emission.unsqueeze(1), fold[tag_of_symbol]).squeeze(1)
    merged = SubstateCounts(counts.log_prob, transition, emission, counts.pairs)
    return maximise(merged, tag_of_symbol, new_sizes), undone
