"""The fallback for state sites written in tensor code: values are enumerated, and the chain is built from the results."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution

from pplseq import checks
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.discrete.dense import FactorChain
from pplseq.infer.discrete.results import Factors
from pplseq.infer.programs.factors.enumeration import PLATE_DIMS, log_prob_shape
from pplseq.infer.programs.markov import check_place, plates_of

NUM_DIMS = 37  # each state has a dimension of its own for that many steps, so that a longer memory than one step shows


class EagerChain:
    """A first-order chain of sites with ``infer={"support": ids}``, ids (K,) or (*B, K) of equal K at all steps.

    The promise behind ``support`` is the user's: states outside it have probability zero at that step.
    """

    def __init__(self, msg):
        self.name, self.scale = msg["name"], msg["scale"]
        self.frames = plates_of(msg)
        self._plates = max((-frame.dim for frame in self.frames), default=0)
        if self._plates > PLATE_DIMS:
            raise ValueError(f"site {self.name!r}: plates take {self._plates} dimensions, at most {PLATE_DIMS} are supported")
        self.state_names: list[str] = []
        self._ids: list[Tensor] = []
        self._scores: list[list[Tensor]] = []
        self._masks: list = []

    @staticmethod
    def _axis(step: int) -> int:
        """The dimension, counted from the left of all of them, in which a step's states are enumerated."""
        return NUM_DIMS - 1 - step % NUM_DIMS

    def enumerate_state(self, msg) -> None:
        """Gives the site all values of its support in a dimension of its own and scores them."""
        check_place(msg, self)
        ids = torch.as_tensor(msg["infer"]["support"])
        if ids.dim() == 0 or ids.is_floating_point():
            raise ValueError(f"site {msg['name']!r}: infer['support'] must hold integer ids (..., K), got {ids}")
        if self._ids and ids.shape[-1] != self._ids[0].shape[-1]:
            raise ValueError(
                f"site {msg['name']!r}: supports must have equal sizes, got {ids.shape[-1]} after {self._ids[0].shape[-1]}"
            )
        if isinstance(msg["mask"], Tensor) and msg["mask"].dim() > PLATE_DIMS:
            raise ValueError(
                f"site {msg['name']!r}: the mask of a state with infer={{'support': ids}} is padding and may depend on no "
                'state; mark the sites infer={"enumerate": "parallel"} instead'
            )
        right = NUM_DIMS + PLATE_DIMS - self._axis(len(self._ids)) - 1
        value = ids.movedim(-1, 0)
        value = value.reshape(value.shape[0], *(1,) * (right - value.dim() + 1), *value.shape[1:])
        self._ids.append(ids)
        self.state_names.append(msg["name"])
        self._masks.append(msg["mask"])
        self._scores.append([msg["fn"].log_prob(value)])
        msg["value"] = value

    def depends(self, msg) -> bool:
        """Whether what a site says depends on enumerated states."""
        return isinstance(msg["fn"], Distribution) and len(log_prob_shape(msg, msg["value"], PLATE_DIMS)[0]) > PLATE_DIMS

    def add_observation(self, msg) -> None:
        if not msg["is_observed"]:
            raise ValueError(
                f"site {msg['name']!r} depends on enumerated states and is not observed; leave a missing observation out, "
                "or mask it"
            )
        check_place(msg, self)
        score = msg["fn"].log_prob(msg["value"])
        if msg["mask"] is not None and msg["mask"] is not True:
            score = torch.where(torch.as_tensor(msg["mask"]), score, 0.0)
        self._scores[-1].append(score)

    # ---------------------------------------------------------------- lowering
    def _batch(self) -> torch.Size:
        """The shape of rows: plates, and whatever else the scores are batched over."""
        shapes = [score.shape[max(0, score.dim() - PLATE_DIMS) :] for scores in self._scores for score in scores]
        shapes += [ids.shape[:-1] for ids in self._ids]
        batch = torch.broadcast_shapes(*shapes, (1,) * self._plates)
        while len(batch) > self._plates and batch[0] == 1:
            batch = batch[1:]
        return batch

    def _pair(self, score: Tensor, step: int, batch: torch.Size) -> Tensor:
        """(*B, P, K) a score by the states of the previous step and this one; P = 1 where it depends on this one only."""
        score = score.reshape((1,) * (NUM_DIMS + PLATE_DIMS - score.dim()) + tuple(score.shape))
        current, previous = self._axis(step), self._axis(step - 1)
        others = [size for axis, size in enumerate(score.shape[:NUM_DIMS]) if axis not in (current, previous)]
        if max(others) > 1 or (step == 0 and score.shape[previous] > 1):
            raise ValueError(
                f"site {self.state_names[step]!r} (or an observation of it) depends on states before the previous one; the "
                "chain must be first-order (use pplseq.infer.programs.contraction for other structures)"
            )
        rows = score.shape[score.dim() - len(batch) :]
        sizes = score.shape[previous], score.shape[current]
        score = score.movedim((previous, current), (0, 1)).reshape(*sizes, *rows)
        return score.movedim((0, 1), (-2, -1))

    def lower(self, check: bool) -> Chain:
        """The chain, as factors between consecutive supports."""
        batch, width = self._batch(), self._ids[0].shape[-1]
        like = torch.stack([score.new_zeros(()) for scores in self._scores for score in scores]).sum()  # of the widest type
        pairs, emits = [], []
        for step, scores in enumerate(self._scores):
            pair, emit = like.expand(*batch, width, width), like.expand(*batch, width)
            for score in scores:
                score = self._pair(score, step, batch)
                if score.shape[-2] > 1:
                    pair = pair + score
                else:
                    emit = emit + score.squeeze(-2)
            pairs.append(pair)
            emits.append(emit)
        emit, ids = torch.stack(emits), torch.stack([ids.expand(*batch, width) for ids in self._ids])
        valid = None
        if any(mask is not None and mask is not True for mask in self._masks):
            masks = [torch.as_tensor(True if mask is None else mask, device=ids.device) for mask in self._masks]
            valid = torch.stack([mask.expand(batch) for mask in masks])
            checks.padding(valid)
        missing = "a chain of infer={'support': ids} sites has no transition and no emission object that this query needs"
        factors = Factors(torch.zeros_like(emit[0]), torch.stack(pairs)[1:], emit, valid)
        return SupportChain(factors, ids, check=check, missing=missing)


class SupportChain(FactorChain):
    """A chain over the supports of its sites, whose places mean other states at every step."""

    def expected_counts(self):
        return self._no_spec()
