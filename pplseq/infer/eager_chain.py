"""The fallback for state sites written in tensor code: values are enumerated, and the chain is built from the results."""

from __future__ import annotations

import torch
from torch import Tensor

from pplseq.infer.chain import Chain, Factors

FIRST_DIM = -9  # states are enumerated left of eight plate dimensions
NUM_DIMS = 3  # current, previous, and one that shows dependence on anything older


class EagerChain:
    """A first-order chain of sites with ``infer={"support": ids}``, ids (K,) or (*B, K) of equal K at all steps.

    The promise behind ``support`` is the user's: states outside it have probability zero at that step.
    """

    def __init__(self, msg):
        self.name = msg["name"]
        self.frames = tuple(frame for frame in msg["cond_indep_stack"] if frame.vectorized)
        self.scale = msg["scale"]
        self.state_names: list[str] = []
        self._ids: list[Tensor] = []
        self._scores: list[list[Tensor]] = []
        self._masks: list = []

    @staticmethod
    def _dim(step: int) -> int:
        return FIRST_DIM - step % NUM_DIMS

    def enumerate_state(self, msg) -> None:
        """Gives the site all values of its support in a dimension of its own and scores them."""
        if any(-frame.dim > -FIRST_DIM - 1 for frame in msg["cond_indep_stack"] if frame.vectorized):
            raise ValueError(f"site {msg['name']!r}: more than {-FIRST_DIM - 1} plate dimensions")
        ids = torch.as_tensor(msg["infer"]["support"])
        if ids.dim() == 0 or ids.is_floating_point():
            raise ValueError(f"site {msg['name']!r}: infer['support'] must hold integer ids (..., K), got {ids}")
        if self._ids and ids.shape[-1] != self._ids[0].shape[-1]:
            raise ValueError(
                f"site {msg['name']!r}: supports must have equal sizes, got {ids.shape[-1]} after {self._ids[0].shape[-1]}"
            )
        dim = self._dim(len(self._ids))
        value = ids.movedim(-1, 0)
        value = value.reshape(value.shape[0], *(1,) * (-dim - value.dim()), *value.shape[1:])
        self._ids.append(ids)
        self.state_names.append(msg["name"])
        self._masks.append(msg["mask"])
        self._scores.append([msg["fn"].log_prob(value)])
        msg["value"] = value

    def depends(self, msg) -> bool:
        """Whether an observed site's distribution depends on enumerated states."""
        return len(msg["fn"].batch_shape) >= -FIRST_DIM

    def add_observation(self, msg) -> None:
        score = msg["fn"].log_prob(msg["value"])
        if msg["mask"] is not None and msg["mask"] is not True:
            score = torch.where(torch.as_tensor(msg["mask"]), score, 0.0)
        self._scores[-1].append(score)

    def lower(self, check: bool) -> Chain:
        """The chain, as factors between consecutive supports."""
        depth = -FIRST_DIM + NUM_DIMS - 1
        batch = torch.broadcast_shapes(
            *(s.shape[max(0, s.dim() + FIRST_DIM + 1) :] for scores in self._scores for s in scores),
            *(ids.shape[:-1] for ids in self._ids),
        )
        width = self._ids[0].shape[-1]
        init, pairs, emits = None, [], []
        for step, scores in enumerate(self._scores):
            current, previous = self._dim(step), self._dim(step - 1)
            older = ({FIRST_DIM - k for k in range(NUM_DIMS)} - {current, previous}).pop()
            pair, emit = 0.0, torch.zeros((*batch, width), device=scores[0].device, dtype=scores[0].dtype)
            for score in scores:
                score = score.reshape((1,) * (depth - score.dim()) + tuple(score.shape))
                if score.shape[older] > 1 or (step == 0 and score.shape[previous] > 1):
                    raise ValueError(
                        f"site {self.state_names[step]!r} (or an observation of it) depends on states before the previous "
                        "one; the chain must be first-order (use pplseq.infer.contraction for other structures)"
                    )
                # (cur, prev, *B) -> (*B, prev, cur)
                lead = score.movedim((previous, current), (0, 1))
                lead = lead.reshape(lead.shape[0], lead.shape[1], *lead.shape[lead.dim() - len(batch) :])
                lead = lead.movedim((0, 1), (-2, -1))
                if lead.shape[-2] > 1:
                    pair = pair + lead
                else:
                    emit = emit + lead.squeeze(-2)
            if step:
                pairs.append(torch.as_tensor(pair).expand(*batch, width, width))
            emits.append(emit.expand(*batch, width))
            init = torch.zeros_like(emit) if init is None else init
        emit = torch.stack(emits)
        pair = torch.stack(pairs) if pairs else emit.new_zeros(0, *batch, width, width)
        valid = None
        if any(mask is not None and mask is not True for mask in self._masks):
            masks = [torch.as_tensor(True if mask is None else mask).expand(batch) for mask in self._masks]
            valid = torch.stack(masks)
        ids = torch.stack([ids.expand(*batch, width) for ids in self._ids])
        return SupportChain(Factors(init, pair, emit, valid), ids, check)


class SupportChain(Chain):
    """A chain given by its factors alone; results name the ids of the supports (T, *B, K)."""

    def __init__(self, factors: Factors, ids: Tensor, check: bool = True):
        self.factors, self.ids, self.check = factors, ids, check
        self.valid, self.start, self.seen, self.states, self.inputs = factors.valid, None, None, None, None
        self.obs = torch.zeros(ids.shape[:-1])
        self.batch_shape = ids.shape[1:-1]

    def _paths(self, position):
        ids = self.ids.expand(*position.shape, -1).gather(-1, position.unsqueeze(-1)).squeeze(-1)
        return super()._paths(ids)

    def marginals(self):
        return super().marginals()._replace(ids=self.ids)

    def pair_marginals(self):
        return super().pair_marginals()._replace(ids=self.ids)

    def filtered(self):
        belief = super().filtered()
        last = self.ids[-1]
        if self.valid is not None:
            step = self.valid.sum(0).sub(1).clamp_min(0)
            last = self.ids.gather(0, step[None, ..., None].expand(1, *last.shape)).squeeze(0)
        return belief._replace(ids=last)
