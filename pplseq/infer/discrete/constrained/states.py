"""Chains whose path of hidden states an automaton must accept: tags in an order that is allowed, regimes that may follow."""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq import checks
from pplseq.distributions.second_order import SecondOrderTransition
from pplseq.distributions.variable_order import VariableOrderTransition
from pplseq.infer.discrete.block import BlockChain
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.discrete.constrained.moves import WordMoves
from pplseq.infer.discrete.dense import FactorChain
from pplseq.infer.discrete.results import Factors

MISSING_SPECS = "a chain whose states are constrained has no specs"


@torch.no_grad()
def constrain_states(chain: Chain, moves: WordMoves, *, check: bool = True) -> FactorChain:
    """The chain's paths z_1..z_T that an automaton over states accepts, given the same observations; no gradients flow.

    Its ``log_prob()`` is log p(x, the path is accepted), so that log p(accepted | x) is that less the chain's own; ``viterbi``,
    ``k_best``, ``sample`` and ``marginals`` are about the paths that are accepted, and name the chain's own states.

    Args:
        chain: with a few thousand states a step at most: dense, one matrix a step (inputs), of second order, or block-sparse
            without missing words.
        moves: an automaton whose "words" are the Z states: ``moves.classes`` is (Z,).
        check: raise for a row that no accepted path explains.

    Raises:
        ValueError: another number of states, missing words in a block-sparse chain, a product that does not fit into memory,
            or a row without an accepted path.

    Cost: a chain of D K states a step, formed as matrices: T D^2 K^2 a row, D^2 K^2 where one matrix serves all steps.
    """
    transition = getattr(chain, "transition", None)  # one that is given by its factors has none
    num_states = chain.factors.emit.shape[-1] if transition is None else transition.num_states
    if len(moves.classes) != num_states:
        raise ValueError(f"moves: made for {len(moves.classes)} states, but the chain has {num_states}")
    if isinstance(chain, BlockChain) and chain.has_gaps:
        raise ValueError("chain: a missing word opens all states; fill the gaps before states are constrained")
    f, ids = chain.factors, chain._ids()
    emit, size, states = f.emit.detach(), moves.num_states, f.emit.shape[-1]
    of_contexts = isinstance(transition, (SecondOrderTransition, VariableOrderTransition))
    one_matrix = (f.shared or of_contexts) and f.restart is None and ids is None
    num_pairs = 1 if one_matrix else (len(emit) - 1) * emit.shape[1:-1].numel()
    checks.fits(
        "moves", num_pairs * (size * states) ** 2 * emit.element_size() * 2.0, "use a smaller automaton, or fewer rows at once"
    )
    moves = moves.to(emit.device)
    known = torch.arange(states, device=emit.device) if ids is None else ids
    # where each state of the automaton is led by the chain's state: (..., D, K)
    after = moves.moves.T[moves.classes[known]].movedim(-1, -2)
    lands = torch.nn.functional.one_hot(after, size).bool()  # (..., D, K, D'): by the state that is entered
    begins = lands[..., moves.start, :, :].transpose(-1, -2)  # (..., D', K)
    init = f.init.detach().expand(emit.shape[1:])
    first = begins if ids is None else begins[0]
    init = torch.where(first, init.unsqueeze(-2), -torch.inf).flatten(-2)

    def product(pair: Tensor, led: Tensor) -> Tensor:
        """(..., D K, D K) from (..., K, K), where states entered lead as (..., D, K, D')."""
        led = led.movedim(-1, -2).unsqueeze(-3)  # (..., D, 1, D', K')
        whole = torch.where(led, pair.unsqueeze(-3).unsqueeze(-2), -torch.inf)  # (..., D, K, D', K')
        return whole.flatten(-2).flatten(-3, -2)

    if one_matrix:
        pair = product(chain._matrices.at(1), lands) if len(emit) > 1 else emit.new_zeros((size * states,) * 2)
    elif len(emit) > 1:
        shape = (*emit.shape[1:], states)
        steps = range(1, len(emit))
        each = (product(chain._matrices.at(t).expand(shape), lands if ids is None else lands[t]) for t in steps)
        pair = torch.stack(list(each))
    else:
        pair = emit.new_zeros(0, *emit.shape[1:-1], size * states, size * states)
    wide = emit.unsqueeze(-2).expand(*emit.shape[:-1], size, states)
    steps = torch.arange(len(emit), device=emit.device).view(-1, *[1] * (emit.dim() - 2))
    last = torch.full_like(steps[:1], len(emit) - 1) if f.valid is None else f.valid.sum(0, keepdim=True) - 1
    ends = (steps == last).expand(emit.shape[:-1])
    wide = wide.masked_fill(ends[..., None, None] & ~moves.accepting.unsqueeze(-1), -torch.inf)
    names = known.repeat(size) if ids is None else ids.repeat(*[1] * (ids.dim() - 1), size)
    names = names.expand(*emit.shape[:-1], size * states)
    found = FactorChain(
        Factors(init, pair, wide.flatten(-2), f.valid, shared=one_matrix), names, check=False, missing=MISSING_SPECS
    )
    if check:
        lost = torch.isneginf(found.log_prob()).nonzero()
        if len(lost):
            raise ValueError(
                f"moves: row {int(lost[0, 0])}: no path of states that explains its observations is accepted by the automaton"
            )
    return found

