"""Models with discrete states whose path must satisfy a constraint, and how probable it is that it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pplseq import checks
from pplseq.data.vocabulary import Vocabulary
from pplseq.distributions.drawing import seeded
from pplseq.infer.discrete.chain import Chain
from pplseq.infer.discrete.constrained.moves import WordMoves
from pplseq.infer.discrete.constrained.states import constrain_states
from pplseq.infer.discrete.results import StateMarginals
from pplseq.models.batch import as_given
from pplseq.models.estimator import Estimator
from pplseq.models.state_labels import named

if TYPE_CHECKING:
    from pplseq.models.constraints.constraint import Constraint


class StateLanguages(Estimator):
    """What models with dense states add: :meth:`under` a constraint on the path of states, and :meth:`language_log_probs`."""

    num_states: int

    def under(self, constraint: Constraint) -> ConstrainedStates:
        """This model, answering about paths of states that satisfy a constraint alone, exactly.

        Args:
            constraint: a :class:`~pplseq.models.constraints.constraint.Constraint` whose words are the numbers of states, as
                ``Constraint.matching("0* 1+ 2*")``.

        Raises:
            TypeError: what is no constraint. ValueError: states that there are not; asked: a sequence without such a path.

        Cost: of an automaton of D states, D^2 that of a chain without it.
        """
        self._check_fitted()
        return ConstrainedStates(self, self._language("constraint", constraint))

    @torch.no_grad()
    def language_log_probs(self, x: Any, languages: Sequence[Constraint], lengths=None, **known: Any) -> Tensor:
        """(B, L) log p(the path of states is in language l | the data), nats; -inf where it cannot be.

        Args:
            x, lengths, **known: the data; of an IOHMM ``x`` may be None, and inputs alone then say how probable paths are.
            languages: L constraints, as :meth:`under` takes them. They may overlap: nothing is divided by their sum.
        """
        if not languages:
            raise ValueError("languages: expected at least one Constraint, got none")
        chain: Chain = self._posterior(x, lengths, **known)[1]
        automata = [self._language(f"languages[{number}]", one) for number, one in enumerate(languages)]
        every = [constrain_states(chain, moves, check=False) for moves in automata]
        return torch.stack([one.log_prob() for one in every], -1) - chain.log_prob().unsqueeze(-1)

    def _language(self, name: str, constraint: Constraint) -> WordMoves:
        if not hasattr(constraint, "over"):
            raise TypeError(f"{name}: expected a Constraint on numbers of states, got {checks.shown(constraint)}")
        return constraint.over(Vocabulary(tuple(map(str, range(self.num_states))), unknown=None))


class ConstrainedStates:
    """A model under a constraint on its path of states; ``model.under(constraint)`` makes one."""

    def __init__(self, model: StateLanguages, moves: WordMoves):
        self.model, self.moves = model, moves

    def _chains(self, x, lengths, known) -> tuple[Chain, Chain]:
        free = self.model._posterior(x, lengths, **known)[1]
        return free, constrain_states(free, self.moves)

    @torch.no_grad()
    def decode(self, x, lengths=None, **known):
        """The most probable path that satisfies it, as :meth:`~pplseq.models.estimator.Estimator.decode`."""
        path = as_given(self._chains(x, lengths, known)[1].viterbi()[0], self.model._results_like(x, **known))
        return named(path, self.model.state_names)

    @torch.no_grad()
    def smooth(self, x, lengths=None, **known):
        """p(z_t | x, the path satisfies it), (B, T, Z), or a list of (T_i, Z)."""
        found: StateMarginals = self._chains(x, lengths, known)[1].marginals()
        return as_given(found.dense(self.model.num_states), self.model._results_like(x, **known))

    @torch.no_grad()
    def sample_states(self, x, num_samples: int = 1, lengths=None, *, seed: int | None = None, **known):
        """(S, B, T) paths drawn from the posterior of those that satisfy it, as the model's ``sample_states`` tells them."""
        checks.count("num_samples", num_samples)
        with seeded(seed):
            return named(self._chains(x, lengths, known)[1].sample(num_samples), self.model.state_names)

    @torch.no_grad()
    def constraint_log_prob(self, x, lengths=None, **known) -> Tensor:
        """(B,) log p(the path satisfies it | x), nats."""
        free, chain = self._chains(x, lengths, known)
        return chain.log_prob() - free.log_prob()
