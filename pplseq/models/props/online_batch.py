"""Online EM of many users at once, in torch: the recursion of :mod:`pplseq.models.props.online_em` with a row a user.

Where one user's stream lets a word go cold as soon as its columns are equal, a batch keeps the last ``window`` words of every
user, so that all users do the same: the matrices are as small, and a step is a few dozen calls for any number of users.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from pplseq import checks
from pplseq.models.props.online_em import StreamState, start_stream
from pplseq.models.props.seen_words import SeenWords
from pplseq.models.props.settings import OnlineEM, StepInfo
from pplseq.models.props.word_statistics import NEGLIGIBLE, REBASE, SPREAD

REBASE_EVERY = 32  # steps between two looks at the running products, which on a GPU are a synchronisation


class BatchStream:
    """B users' streams over words; ``step`` changes it in place.

    Args:
        initial: (K,), transition: (K, K), emission: (K_p, V) probabilities that all users start with; their type and device
            are the batch's.
        num_users: B. options: see :class:`~pplseq.models.props.settings.OnlineEM`.
        window: words kept hot; each costs every step, so it is not more than is needed: see ``StepInfo.residual``.

    Memory: of a user about 2 N (K_p + 1) numbers, where N is the number of different words that the user with the most has
    seen (2 N (3 K_p + 1) with averaging), and window K_p K; whatever V is.
    """

    def __init__(
        self, initial: Tensor, transition: Tensor, emission: Tensor, num_users: int, options: OnlineEM, window: int = 64
    ):
        if isinstance(num_users, bool) or not isinstance(num_users, int) or num_users < 1:
            raise ValueError(f"num_users must be a positive integer, got {checks.shown(num_users)}")
        self.first_initial, self.first_transition, self.table, self.options = initial, transition, emission, options
        self.num_users, self.num_states = num_users, len(initial)
        self.num_own, self.num_words = emission.shape
        self.num_sources = self.num_states - self.num_own
        self.window = min(options.window, window)
        num_states, own = self.num_states, self.num_own
        self.num_moves, self.num_fixed = num_states**2, num_states**2 + num_states
        self.num_settled = self.num_fixed + own
        size = self.num_settled + self.window * own
        full = initial.new_zeros
        self.initial, self.transition = initial.repeat(num_users, 1), transition.repeat(num_users, 1, 1)
        self.filter = self.initial
        self.rho, self.rows = full(num_users, size, num_states), full(num_users, size)
        self.words = torch.full((num_users, self.window), -1, device=initial.device)  # of the slots, -1 where free
        self.num_steps, self.num_entered = (
            torch.zeros(num_users, dtype=torch.long, device=initial.device) for _ in "ab"
        )
        self.fresh = torch.ones(num_users, dtype=torch.bool, device=initial.device)
        self.detached = torch.zeros_like(self.fresh)
        self.residual, self.scale = full(num_users), full(num_users) + 1
        columns = {"values": own}
        if options.averaging is not None:
            self.sums, self.total_weight, self.weighted = full(num_users, size), full(num_users), full(num_users)
            columns |= {"sums": own, "corrections": own}
        self.cold = SeenWords(num_users, columns, initial)
        self._users = torch.arange(num_users, device=initial.device)
        self._since_rebase = 0

    def new_sequence(self, users: Tensor | None = None) -> None:
        """A boundary, of all users or of those in a mask (B,)."""
        self.fresh = torch.ones_like(self.fresh) if users is None else self.fresh | users

    @property
    def maximized(self) -> Tensor:
        """(B,) whether the warm-up is over."""
        return self.options.maximized(self.num_steps)

    # ---------------------------------------------------------------- one token of every user
    def step(self, y, source_log_probs=None, learn: bool = True, active: Tensor | None = None) -> StepInfo:
        """Takes a token of every user.

        Args:
            y: (B,) word ids, -1 for a missing one.
            source_log_probs: (B, K_s) log f^k(y | past) of every source; not read where y is missing.
            learn: False only moves the filters; averaged parameters are then used where something is averaged.
            active: (B,) False for users without a token in this step, whose streams stay as they are; None for all.

        Returns:
            :class:`~pplseq.models.props.settings.StepInfo` of (B,) tensors, without meaning where a user is not active.

        Raises:
            ValueError: for shapes or numbers out of range, and a token that is impossible in every state; nothing has then
                changed.
        """
        y, logs, active = self._checked(y, source_log_probs, active)
        seen, word = y >= 0, y.clamp_min(0)
        average = not learn and self.options.averaging is not None
        initial, transition = self._mean_moves() if average else (self.initial, self.transition)
        prior = torch.where(self.fresh[:, None], initial, (self.filter[:, None] @ transition)[:, 0])
        likelihood = torch.cat([logs.exp(), self._own_probs(word, average)], -1)
        joint = torch.where(seen[:, None], prior * likelihood, prior)
        by_source, by_own = joint[:, : self.num_sources].sum(-1), joint[:, self.num_sources :].sum(-1)
        total = by_source + by_own
        bad = ~((total > 0) & total.isfinite()) & active
        if bool(bad.any()):
            user = int(bad.nonzero()[0, 0])
            raise ValueError(
                f"y: user {user}: token {int(y[user])} is impossible (probability {float(total[user])}) in every state; smooth "
                "the sources, or use smoothing > 0"
            )
        phi = joint / total[:, None]
        if learn:
            self._learn(word, seen & active, active, torch.where(self.fresh[:, None], initial, self.filter), prior, phi)
        else:
            self.detached |= active
        self.filter = torch.where(active[:, None], phi, self.filter)
        self.fresh = self.fresh & ~active
        source_prior, own_prior = prior[:, : self.num_sources], prior[:, self.num_sources :].sum(-1)
        log_own, log_source = by_own.log(), by_source.log()
        if self.num_sources:  # in logarithms, as what is far off underflows
            log_source = (source_prior.log() + logs).logsumexp(-1)
        return StepInfo(
            torch.where(seen, total.log(), 0.0),
            phi,
            by_own / total,
            _log_ratio(log_own, log_source),
            -_log_ratio(log_source, source_prior.sum(-1).log()),
            -_log_ratio(log_own, own_prior.log()),
            self.residual.clone(),
        )

    def _checked(self, y, logs, active) -> tuple[Tensor, Tensor, Tensor]:
        device = self.initial.device
        y = torch.as_tensor(y, device=device)
        if y.is_floating_point() or y.dtype == torch.bool:
            raise TypeError(f"y must hold word ids (integers), got {y.dtype}")
        if y.shape != (self.num_users,):
            raise ValueError(
                f"y must hold a word id for each of the {self.num_users} users, got shape {tuple(y.shape)}"
            )
        active = torch.ones_like(self.fresh) if active is None else torch.as_tensor(active, device=device)
        if active.dtype != torch.bool or active.shape != (self.num_users,):
            raise ValueError(
                f"active must be a mask (B,) = ({self.num_users},), got {active.dtype} {tuple(active.shape)}"
            )
        y = torch.where(active, y, -1).long()
        if bool(((y < -1) | (y >= self.num_words)).any()):
            user = int(((y < -1) | (y >= self.num_words)).nonzero()[0, 0])
            raise ValueError(
                f"y: user {user}: must be a word id in 0..{self.num_words - 1}, or -1 for a missing word; got {int(y[user])}"
            )
        expected = (self.num_users, self.num_sources)
        logs = self.initial.new_zeros(self.num_users, 0) if logs is None else torch.as_tensor(logs, device=device)
        if logs.shape != expected and 0 in expected:
            logs = logs.new_zeros(expected)
        if logs.shape != expected:
            raise ValueError(f"source_log_probs must have shape (B, K_s) = {expected}, got {tuple(logs.shape)}")
        wrong = ~(logs <= 1e-6) & (y >= 0)[:, None]
        if bool(wrong.any()):
            user, source = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"source_log_probs: user {user}: source {source} gives {float(logs[user, source])}; expected the log of a "
                "probability"
            )
        return y, torch.where((y >= 0)[:, None], logs, 0.0).to(self.initial), active

    def _hot(self, rows: Tensor) -> Tensor:
        """(B, window, K_p) the slots' part of rows."""
        return rows[:, self.num_settled :].reshape(self.num_users, self.window, self.num_own)

    def _own_probs(self, word: Tensor, average: bool) -> Tensor:
        """(B, K_p) lambda_k of a word of every user."""
        rows = self._mean_rows() if average else self.rows
        cold = self.cold.get(word, ["values"])[0] * self.scale[:, None]
        if average:
            values, sums, corrections = self.cold.get(word, ["values", "sums", "corrections"])
            cold = self._mean_or(values * self.weighted[:, None] + sums - corrections, cold)
        same = (self.words == word[:, None]).to(rows)
        counts = cold + (same[:, None] @ self._hot(rows))[:, 0]
        return torch.where(self.maximized[:, None], self._smoothed(counts, rows), self.table.T[word])

    def _smoothed(self, counts: Tensor, rows: Tensor) -> Tensor:
        """Probabilities from counts (B, K_p, ...)."""
        options = self.options
        share = (1 / self.num_steps.clamp_min(1).to(rows)).clamp_min(options.step_size or 0.0)
        smoothing = (options.smoothing + options.prior_tokens * share)[:, None]
        total = rows[:, self.num_fixed : self.num_settled] + smoothing
        extra = (1,) * (counts.dim() - 2)
        total, smoothing = total.reshape(*total.shape, *extra), smoothing.reshape(*smoothing.shape, *extra)
        probs = (counts + smoothing / self.num_words) / total
        return torch.where(total > 0, probs, 1 / self.num_words)

    def _learn(self, word, entered, active, before, prior, phi) -> None:
        options, users, own = self.options, self._users, self.num_own
        slot = self.num_entered % self.window
        places = self.num_settled + slot[:, None] * own + torch.arange(own, device=slot.device)  # (B, K_p) rows
        self._evict(slot, places, entered)
        steps = self.num_steps + active
        gain = steps.clamp_min(1).to(phi) ** -options.exponent
        if options.step_size is not None:  # not a bare number: where() of two numbers is single precision
            gain = torch.full_like(gain, options.step_size)
        gain = torch.where(steps == 1, 1.0, gain)
        gain = torch.where(active, gain, 0.0)
        keep = 1 - gain
        # the past of a state that cannot be reached does not matter
        back = before[:, :, None] * self.transition / torch.where(prior > 0, prior, 1.0)[:, None]
        back = torch.where((prior > 0)[:, None], back, before[:, :, None])
        cut = self.fresh | self.detached
        rho = torch.where(cut[:, None, None], self.rows[:, :, None], self.rho @ back) * keep[:, None, None]
        gained = torch.where(self.fresh, 0.0, gain)[:, None, None] * back
        diagonal = torch.arange(self.num_states, device=slot.device)
        rho[:, : self.num_moves].view(-1, self.num_states, self.num_states, self.num_states)[
            :, :, diagonal, diagonal
        ] += gained
        rho[:, self.num_moves : self.num_fixed].diagonal(0, 1, 2).add_(torch.where(self.fresh, gain, 0.0)[:, None])
        entering = torch.where(entered, gain, 0.0)[:, None]
        columns = self.num_sources + torch.arange(own, device=slot.device)
        rho[:, self.num_fixed : self.num_settled].diagonal(self.num_sources, 1, 2).add_(entering)
        rho[users[:, None], places, columns] += entering
        rho = torch.where(active[:, None, None], rho, self.rho)
        rows = torch.where(active[:, None], (rho @ phi[:, :, None])[:, :, 0], self.rows)
        self.words[users, slot] = torch.where(entered, word, self.words[users, slot])
        self.num_entered = self.num_entered + entered
        self.rho, self.rows, self.num_steps = rho, rows, steps
        self.detached = self.detached & ~active
        self.scale = self.scale * torch.where((steps == 1) | ~active, 1.0, keep)
        if options.averaging is not None:
            weight = steps.to(phi) ** 2 if options.averaging == "recent" else (steps >= options.averaging).to(phi)
            weight = torch.where(active, weight, 0.0)
            self.sums = self.sums + weight[:, None] * rows
            self.weighted = self.weighted + weight * self.scale
            self.total_weight = self.total_weight + weight
        self._since_rebase += 1
        if self._since_rebase >= REBASE_EVERY and float(self.scale.min()) < REBASE:
            self._rebase()
        self.initial, self.transition = self._maximal_moves(rows, active)

    def _evict(self, slot: Tensor, places: Tensor, entered: Tensor) -> None:
        """Moves what is in the slots of users with a new word to the cold ones."""
        users = self._users
        old = self.words[users, slot]
        full = (entered & (old >= 0))[:, None]
        old, columns = old.clamp_min(0), users[:, None]
        block = self.rho[columns, places]
        top = block.amax(-1)
        spread = ((top - block.amin(-1)) / torch.where(top > NEGLIGIBLE, top, 1.0)).amax(-1)
        spread = torch.where(full[:, 0] & (spread > SPREAD), spread, 0.0)
        self.residual = torch.maximum(self.residual, spread)
        relative = torch.where(full, self.rows[columns, places] / self.scale[:, None], 0.0)
        entering = {"values": relative}
        tables = [self.rows]
        if self.options.averaging is not None:
            entering |= {"sums": self.sums[columns, places], "corrections": relative * self.weighted[:, None]}
            tables.append(self.sums)
        self.cold.add(old, entering, full[:, 0])
        for table in tables:
            table[columns, places] = torch.where(full, 0.0, table[columns, places])
        self.rho[columns, places] = torch.where(full[..., None], 0.0, block)

    def _rebase(self) -> None:
        """Writes the running products into the cold numbers."""
        cold = self.cold.columns
        if self.options.averaging is not None:
            cold["sums"] += cold["values"] * self.weighted[:, None, None] - cold["corrections"]
            cold["corrections"].zero_()
            self.weighted = torch.zeros_like(self.weighted)
        cold["values"] *= self.scale[:, None, None]
        self.scale = torch.ones_like(self.scale)
        self._since_rebase = 0

    # ---------------------------------------------------------------- parameters
    def _maximal_moves(self, rows: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """(B, K) first states and (B, K, K) moves from rows, of the users in a mask whose moves are learned."""
        options, share = self.options, 1 / self.num_steps.clamp_min(1).to(rows)
        least = 1 if options.transition_prior else options.warm_up
        wanted, initial = wanted & (self.num_steps >= least), self.initial
        if options.initial_prior is not None and "initial" not in options.fixed:
            counts = rows[:, self.num_moves : self.num_fixed]
            counts = counts + options.initial_prior * share[:, None] * self.first_initial
            initial = _shares(counts, wanted[:, None], initial)
        if "transition" in options.fixed:
            return initial, self.transition
        counts = rows[:, : self.num_moves].reshape(-1, self.num_states, self.num_states)
        first = self.first_initial[:, None] * self.first_transition
        counts = counts + options.transition_prior * share[:, None, None] * first
        counts = counts + options.transition_smoothing / self.num_states
        return initial, _shares(counts, wanted[:, None, None], self.transition)

    def _mean_or(self, sums: Tensor, now: Tensor) -> Tensor:
        """Means over tokens (B, ...) of each user; ``now`` for those of whom nothing is averaged yet."""
        weight = self.total_weight[:, None]
        return torch.where(weight > 0, sums / weight.clamp_min(1e-300), now)

    def _mean_rows(self) -> Tensor:
        return self._mean_or(self.sums, self.rows)

    def _mean_moves(self) -> tuple[Tensor, Tensor]:
        return self._maximal_moves(self._mean_rows(), self.total_weight > 0)

    def user(self, index: int) -> StreamState:
        """One user's stream by itself: to save, merge, question or go on with."""
        arrays = {name: getattr(self, name).double().cpu().numpy() for name in ("first_initial", "first_transition", "table")}
        state = start_stream(
            initial=arrays["first_initial"],
            transition=arrays["first_transition"],
            emission=arrays["table"],
            options=self.options,
        )

        def numbers(name: str) -> np.ndarray:
            return getattr(self, name)[index].double().cpu().numpy()

        state.num_steps = state.clock = int(self.num_steps[index])
        state.fresh, state.detached = bool(self.fresh[index]), bool(self.detached[index])
        state.initial, state.transition = numbers("initial"), numbers("transition")
        state.filter, own = numbers("filter"), self.num_own
        averaging, emissions = self.options.averaging is not None, state.emissions
        state.total_weight = float(self.total_weight[index]) if averaging else 0.0
        order = torch.arange(int(self.num_entered[index]) - self.window, int(self.num_entered[index]))
        slots = (order[order >= 0] % self.window).tolist()
        while emissions.capacity < len(slots):
            emissions.free = []
            emissions.grow()
            state._allocate()
        emissions.free = list(range(len(slots), emissions.capacity))
        source = [*range(self.num_settled), *(self.num_settled + s * own + k for s in slots for k in range(own))]
        for name in ("rho", "rows", *(("sums",) if averaging else ())):
            getattr(state, name)[: len(source)] = numbers(name)[source]
        for place, slot in enumerate(slots):  # in order, so that their places are 0, 1, ...
            word = int(self.words[index, slot])
            emissions.hot.append((word, place))
            emissions.slots.setdefault(word, []).append(place)
        emissions.smoothing = self.options.smoothing_at(state.num_steps)
        emissions.residual, cold = float(self.residual[index]), emissions.cold
        cold.scale, cold.weighted = float(self.scale[index]), float(self.weighted[index]) if averaging else 0.0
        seen = {name: part.cpu().numpy() for name, part in self.cold.user(index).items()}
        for row, word in enumerate(seen.pop("words").tolist()):
            place = cold.place(word)  # which may replace the arrays by longer ones
            for name, part in seen.items():
                getattr(cold, name)[place] = part[row]
        fixed = state.num_fixed  # the next word needs a slot, which a batch empties only when it comes
        emissions.cool(state.rho[fixed:], state.rows[fixed:], state.sums[fixed:] if averaging else None)
        return state

    def word_probs(self, source_probs: Tensor | None = None) -> Tensor:
        """(B, V) p(next word | past), from the sources' (B, K_s, V) probabilities; costs O(B V K)."""
        prior = torch.where(self.fresh[:, None], self.initial, (self.filter[:, None] @ self.transition)[:, 0])
        result = (prior[:, None, self.num_sources :] @ self.emission())[:, 0]
        if self.num_sources:
            shape = (self.num_users, self.num_sources, self.num_words)
            if source_probs is None or tuple(source_probs.shape) != shape:
                got = None if source_probs is None else tuple(source_probs.shape)
                raise ValueError(f"source_probs must have shape (B, K_s, V) = {shape}, got {got}")
            result = result + (prior[:, None, : self.num_sources] @ source_probs.to(result))[:, 0]
        return result

    def emission(self) -> Tensor:
        """(B, K_p, V) word probabilities of the perturbation states now."""
        cold = self.cold.columns["values"] * self.scale[:, None, None]
        counts = cold.new_zeros(self.num_users, self.num_words, self.num_own)
        counts = counts.scatter_add(1, self.cold.keys.clamp_min(0)[:, :, None].expand_as(cold), cold)
        index = self.words.clamp_min(0)[:, :, None].expand(-1, -1, self.num_own)
        counts = counts.scatter_add(1, index, self._hot(self.rows) * (self.words >= 0)[:, :, None])
        return torch.where(self.maximized[:, None, None], self._smoothed(counts.mT, self.rows), self.table)


def _shares(counts: Tensor, wanted: Tensor, otherwise: Tensor) -> Tensor:
    """Counts over their sums, along the last axis; those given where nothing is wanted or counted."""
    total = counts.sum(-1, keepdim=True)
    return torch.where(wanted & (total > 0), counts / torch.where(total > 0, total, 1.0), otherwise)


def _log_ratio(above: Tensor, below: Tensor) -> Tensor:
    """The logs of quotients of what has these logs."""
    return (above - below).where(above > -math.inf, above)
