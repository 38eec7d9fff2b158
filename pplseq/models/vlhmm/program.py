"""The very large hidden Markov language model.

Source: J. Chiu and A. M. Rush (2020), Scaling Hidden Markov Language Models, EMNLP.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from pplseq import checks
from pplseq.distributions.block import BlockEmission, BlockTransition, EmbeddingTransition, TableTransition
from pplseq.distributions.blocks import BlockLayout, WordGroups, block_sizes
from pplseq.distributions.hierarchical import HierarchicalTables, HierarchicalTransition
from pplseq.distributions.state import MISSING, Belief
from pplseq.distributions.topics import TopicEmission, TopicLayout, TopicTransition, topic_norms
from pplseq.infer.fit.em import Batch
from pplseq.infer.programs.markov import markov
from pplseq.models.base import Given, Sizes, one_chain
from pplseq.models.batch import as_given
from pplseq.models.constrained import Constrainable
from pplseq.models.vlhmm.layers import ResidualLayer, dropout
from pplseq.threads import undisturbed

PARAMETERIZATIONS = ("independent", "factored", "scalar")
TRANSITIONS = ("softmax", "hierarchical")
INITIALIZATIONS = ("normal", "xavier")
ROLES = ("start", "out", "into", "emit")
PRODUCT_DTYPES = {"float32": None, "bfloat16": torch.bfloat16}
KEPT_TOPIC = 2.0  # log odds, at the start, of a topic that is kept behind the end of a sentence


class VLHMM(Constrainable):
    """An HMM over words whose Z states are split in M blocks; a word is emitted by the states of its own block only.

        z_1 ~ start,  z_t | z_{t-1} ~ softmax_z'(Res(E_z) . E_z' / temperature),  x_t | z_t ~ softmax over the block's words

    Args:
        num_words: V; None: the model gets its words, blocks and parameters when it is fitted to a text.
        num_states: Z, of a topic.
        blocks: (V,) block of each word, 0..M-1, or None for one block (no constraint).
        hidden_size: width h of state embeddings.
        transition: "softmax" over all states, or "hierarchical": over blocks, then over the states of the block. Nothing
            of the second grows with Z^2.
        parameterization: "independent" (an embedding a state), "factored" (half from its block) or "scalar" (free tables).
        tied: one embedding table for start, out, into and emit, or four.
        shared_layer: start and emission share one residual layer (with tied embeddings), a third of the work of the layers.
        state_dropout: share of each block's states left out of a training step.
        feature_dropout: share of the features, of leaving and of emitting, that are left out of a training step by state.
        reset_id: word (the id of ``<eos>``) after which the next state is drawn from the start distribution, in training
            and evaluation alike; None: the state runs on.
        initialization: "normal" (embeddings N(0, init_scale^2)) or "xavier".
        temperature: divides transition scores; sqrt(h) keeps bfloat16 honest.
        states_per_block: M sizes that sum to Z, for uneven blocks; None: Z / M each.
        normalizer_dtype: type of the products inside the training normaliser; evaluation is always exact.
        num_topics: C. With more than one, hidden states are (topic, state): the topic stays within a sentence, and behind
            ``reset_id`` (whose block is its own) it is kept with ``topic_persistence`` or drawn anew; words, next blocks
            and first ones have a number more a topic. One HMM of C Z states whose steps cost little more than those of Z
            (scalar tables: as those of features as wide as Z). See :mod:`pplseq.distributions.topics`.
        topic_persistence: p(the topic is kept) that is held; None: learned, from lines in their order also where training
            shuffles them.
        topic_decay: weight decay, in training, of what topics add to scores.

    Raises:
        ValueError: for options that do not fit together; TypeError for wrong types.
    """

    block_of_word: Tensor
    name = "vlhmm"
    _word_of_none = 0  # which is possible, and opens the states of its block; one that was not seen opens all

    def __init__(
        self,
        num_states: int = 4096,
        *,
        num_words: int | None = None,
        blocks: Tensor | Sequence[int] | None = None,
        hidden_size: int = 256,
        transition: str = "softmax",
        parameterization: str = "independent",
        tied: bool = True,
        shared_layer: bool = False,
        state_dropout: float = 0.0,
        feature_dropout: float = 0.0,
        reset_id: int | None = None,
        initialization: str = "normal",
        init_scale: float = 0.1,
        temperature: float = 1.0,
        states_per_block: Sequence[int] | None = None,
        normalizer_dtype: str = "float32",
        num_topics: int = 1,
        topic_persistence: float | None = None,
        topic_decay: float = 0.2,
    ):
        super().__init__()
        for name, value in (("tied", tied), ("shared_layer", shared_layer)):
            if not isinstance(value, bool):
                raise TypeError(f"{name} must be True or False, got {checks.shown(value)}")
        if shared_layer and not tied:
            raise ValueError("shared_layer: start and emission have embeddings of their own; tie them, or leave it out")
        if feature_dropout and parameterization == "scalar":
            raise ValueError("feature_dropout: scalar tables have no features; leave it out, or use state_dropout")
        self._config: dict[str, Any] = dict(
            num_words=None,
            num_states=checks.count("num_states", num_states),
            hidden_size=checks.count("hidden_size", hidden_size, 2),
            transition=checks.choice("transition", transition, TRANSITIONS),
            parameterization=checks.choice("parameterization", parameterization, PARAMETERIZATIONS),
            tied=tied,
            shared_layer=shared_layer,
            state_dropout=checks.share("state_dropout", state_dropout, "[0, 1)"),
            feature_dropout=checks.share("feature_dropout", feature_dropout, "[0, 1)"),
            reset_id=None,
            initialization=checks.choice("initialization", initialization, INITIALIZATIONS),
            init_scale=checks.positive("init_scale", init_scale, zero=True),
            temperature=checks.positive("temperature", temperature),
            states_per_block=None,
            normalizer_dtype=checks.choice("normalizer_dtype", normalizer_dtype, PRODUCT_DTYPES),
            num_topics=checks.count("num_topics", num_topics),
            topic_persistence=topic_persistence,
            topic_decay=checks.positive("topic_decay", topic_decay, zero=True),
        )
        if num_topics > 1:
            if states_per_block is not None:
                raise ValueError(
                    f"num_topics: topics need blocks of one size, got states_per_block={checks.shown(states_per_block)}"
                )
        if topic_persistence is not None:
            checks.share("topic_persistence", topic_persistence, "(0, 1)")
            if num_topics == 1:
                raise ValueError("topic_persistence: there is one topic; give num_topics, or leave it out")
        if hidden_size % 2:
            raise ValueError(f"hidden_size must be an even number, got {hidden_size}")
        self.num_words, self.reset_id = None, None
        self.num_topics, self.hidden_size, self.state_dropout = num_topics, hidden_size, state_dropout
        self.num_states = num_topics * num_states  # of the HMM
        self.feature_dropout = feature_dropout
        if num_words is not None:
            self.lay_out(num_words, blocks, states_per_block=states_per_block, reset_id=reset_id)
        elif not (blocks is None and states_per_block is None and reset_id is None):
            raise ValueError("blocks, states_per_block and reset_id need num_words; without it, fit finds all of them")

    def lay_out(
        self,
        num_words: int,
        blocks: Tensor | Sequence[int] | None = None,
        *,
        states_per_block: Sequence[int] | None = None,
        reset_id: int | None = None,
    ) -> None:
        """Draws all parameters anew, for so many words in such blocks; arguments as of the class.

        ``fit`` does this for a model that was made without ``num_words``.
        """
        num_words = checks.count("num_words", num_words)
        if reset_id is not None and not isinstance(reset_id, int):
            raise TypeError(f"reset_id must be a word id or None, got {checks.shown(reset_id)}")
        if reset_id is not None and not 0 <= reset_id < num_words:
            raise ValueError(f"reset_id must be a word id in 0..{num_words - 1} or None, got {reset_id}")
        blocks = torch.zeros(num_words, dtype=torch.long) if blocks is None else _whole("blocks", blocks)
        if states_per_block is not None:
            states_per_block = _whole("states_per_block", states_per_block).tolist()
        sizes = block_sizes(num_words, self._config["num_states"], blocks, states_per_block)
        if self.num_topics > 1 and reset_id is not None and int((blocks == blocks[reset_id]).sum()) > 1:
            raise ValueError(
                f"reset_id: with topics the word {reset_id} needs a block of its own, which its states tell; it shares block "
                f"{int(blocks[reset_id])}"
            )
        self._check_size()
        self._config |= dict(num_words=num_words, states_per_block=states_per_block, reset_id=reset_id)
        self.num_words, self.reset_id, self._sizes = num_words, reset_id, sizes
        self.register_buffer("block_of_word", blocks)
        self._indices: dict[torch.device, tuple[BlockLayout, WordGroups]] = {}
        self._cached_specs: tuple | None = None
        self._learns_lines_apart = False  # whether it is in a training on lines that do not follow each other
        self.draw_parameters()

    def _check_size(self) -> None:
        """Raises ValueError where the tables of the states alone, float32, are more than the machine's memory."""
        if self._config["parameterization"] == "scalar":
            numbers = self._config["num_states"] ** 2
            hint = "choose fewer states, or embeddings (parameterization='independent')"
        else:
            width = self.hidden_size // 2 if self._config["parameterization"] == "factored" else self.hidden_size
            numbers = self._config["num_states"] * width * (1 if self._config["tied"] else len(ROLES))
            hint = "choose fewer states or a smaller hidden_size"
        checks.fits("num_states", 4.0 * numbers, hint)

    def draw_parameters(self) -> None:
        """Replaces all parameters by new ones, drawn as ``initialization`` says."""
        if self._config["parameterization"] == "scalar":
            self._make_tables(int(self._sizes.max()))
        else:
            self._make_embeddings(len(self._sizes))
        if self.num_topics > 1:
            self._make_topics(len(self.block_of_word), len(self._sizes))
        self.drawn()

    def draw_anew(self, holds: Mapping[str, Tensor | None]) -> None:
        """:meth:`draw_parameters`, but for those that are frozen, and for what is held (None: all of a parameter)."""
        before = dict(self.named_parameters())
        self.draw_parameters()
        with torch.no_grad():
            for name, new in self.named_parameters():
                old = before[name]
                new.requires_grad_(old.requires_grad)
                if not old.requires_grad or name in holds:
                    mask = holds.get(name)
                    new.copy_(old if mask is None or not old.requires_grad else torch.where(mask, old, new))

    # ---------------------------------------------------------------- parameters
    def _make_embeddings(self, num_blocks: int) -> None:
        config, size = self._config, self.hidden_size
        roles = ("all",) if config["tied"] else ROLES
        factored = config["parameterization"] == "factored"
        width = size // 2 if factored else size
        self.states = PyroModule[nn.ModuleDict]()
        self.states.update({role: nn.Embedding(config["num_states"], width) for role in roles})
        tables = [table.weight for table in self.states.values()]
        if factored:
            self.block_states = PyroModule[nn.ModuleDict]()
            self.block_states.update({role: nn.Embedding(num_blocks, size - width) for role in roles})
            tables += [table.weight for table in self.block_states.values()]
        for table in tables:
            if config["initialization"] == "normal":
                nn.init.normal_(table, std=config["init_scale"])
            else:
                nn.init.xavier_uniform_(table)
        if not config["shared_layer"]:
            self.start_layer = ResidualLayer(size)
        self.out_layer, self.emit_layer = (ResidualLayer(size) for _ in range(2))
        self.start_score = nn.Linear(size, 1)
        if config["transition"] == "hierarchical":
            self.block_score = nn.Linear(size, num_blocks)
            nn.init.normal_(self.block_score.weight, std=config["init_scale"])
            nn.init.zeros_(self.block_score.bias)
        self.word_score = nn.Linear(size, len(self.block_of_word))

    def _make_topics(self, num_words: int, num_blocks: int) -> None:
        """Topics that differ a little; ``fit`` takes them from a text: see :mod:`pplseq.models.vlhmm.topics`."""
        scale = self._config["init_scale"]
        self.topic_words = nn.Parameter(torch.randn(num_words, self.num_topics) * scale)
        self.topic_blocks, self.topic_starts = (
            nn.Parameter(torch.zeros(num_blocks, self.num_topics)) for _ in range(2)
        )
        self.topic_prior = nn.Parameter(torch.zeros(self.num_topics))
        kept = self._config["topic_persistence"]
        logit = KEPT_TOPIC if kept is None else math.log(kept / (1 - kept))
        self.topic_kept = nn.Parameter(torch.tensor(logit), requires_grad=kept is None)

    def _make_tables(self, width: int) -> None:
        count = self._config["num_states"]
        scale = self._config["init_scale"] if self._config["initialization"] == "normal" else 1 / math.sqrt(count)
        self.start_table = nn.Parameter(torch.randn(count) * scale)
        self.transition_table = nn.Parameter(torch.randn(count, count) * scale)
        self.word_table = nn.Parameter(torch.randn(len(self.block_of_word), width) * scale)
        if self._config["transition"] == "hierarchical":
            self.block_table = nn.Parameter(torch.randn(count, len(self._sizes)) * scale)

    def embeddings(self, role: str, ids: Tensor | None, layout: BlockLayout) -> Tensor:
        """(R, h) state embeddings of the given global ids; of all kept states for None."""
        role = "all" if self._config["tied"] else role
        if ids is None and not layout.complete:
            ids = layout.kept_ids
        # as attributes: items of a ModuleDict would never reach Pyro's traces, and SVI would not train them
        states = getattr(self.states, role)
        rows = states.weight if ids is None else states(ids)
        if self._config["parameterization"] != "factored":
            return rows
        block = self._index()[0].block_of_state() if ids is None else self._index()[0].block_of_state()[ids]
        return torch.cat([getattr(self.block_states, role)(block), rows], -1)

    @property
    def decays(self) -> dict[str, float]:
        """Weight decays of single parameters, in training: what topics add to scores learns a text by heart else."""
        return dict.fromkeys(("topic_words", "topic_blocks", "topic_starts"), self._config["topic_decay"])

    # ---------------------------------------------------------------- the two conditional distributions
    def _index(self) -> tuple[BlockLayout, WordGroups]:
        device = self.block_of_word.device
        if device not in self._indices:
            layout = BlockLayout.from_sizes(self._sizes, device=device)
            self._indices[device] = layout, WordGroups(self.block_of_word, layout.num_blocks)
        return self._indices[device]

    def specs(self) -> tuple[BlockTransition, BlockEmission]:
        """Transition and emission with the current parameters, over the states kept in this step."""
        self._check_words_known()
        layout, words = self._index()
        if self._is_learning or torch.is_grad_enabled():
            self._cached_specs = None
            return self._build_specs(layout.dropped(self.state_dropout if self._is_learning else 0.0), words)
        # at test the row normalisers, Z numbers, are computed once for given parameters
        version, cached = tuple((p.data_ptr(), p._version) for p in self.parameters()), self._cached_specs
        if cached is None or cached[0] != version:
            cached = self._cached_specs = version, self._build_specs(layout, words)
        return cached[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_cached_specs": None}  # those of this model's parameters

    def _build_specs(self, layout: BlockLayout, words: WordGroups) -> tuple[BlockTransition, BlockEmission]:
        config = self._config
        if config["parameterization"] == "scalar":
            return self._specs_of_tables(layout, words)
        kept = dict.fromkeys(ROLES, self.embeddings("all", None, layout)) if config["tied"] else {}
        kept = kept or {role: self.embeddings(role, None, layout) for role in ROLES}
        emit = self.emit_layer(kept["emit"])
        start = emit if config["shared_layer"] else self.start_layer(kept["start"])
        initial = torch.log_softmax(self.start_score(start).squeeze(-1), -1)
        every = torch.arange(layout.num_blocks, device=emit.device)
        scores = words.products(layout.of_blocks(self._thinned(emit), every), self.word_score.weight, self.word_score.bias)
        features: tuple = self._out(kept["out"]), kept["into"]
        if config["transition"] == "hierarchical":
            features = *features, self.block_score.weight, self.block_score.bias
        options: dict[str, Any] = dict(
            out_of=lambda ids: self._out(self.embeddings("out", ids, layout)),
            product_dtype=PRODUCT_DTYPES[config["normalizer_dtype"]] if self._is_learning else None,
        )
        if self.num_topics > 1:
            return self._topic_specs(layout, words, initial, scores, *features, **options)
        emission = BlockEmission(layout, self.block_of_word, words.log_softmax(scores))
        kind = HierarchicalTransition if config["transition"] == "hierarchical" else EmbeddingTransition
        return kind(layout, initial, *features, reset_id=self.reset_id, emission=emission, **options), emission

    def _specs_of_tables(self, layout: BlockLayout, words: WordGroups) -> tuple[BlockTransition, BlockEmission]:
        initial = torch.log_softmax(self.start_table[layout.kept_ids], -1)
        slot_of = layout.state_ids - self._index()[0].state_ids[:, :1]  # which columns of the word table are kept
        scores = words.rows(self.word_table.gather(-1, slot_of[self.block_of_word]))
        tables = [self.transition_table / self._config["temperature"]]
        if self._config["transition"] == "hierarchical":
            tables.append(self.block_table / self._config["temperature"])
        if self.num_topics > 1:  # whose chains multiply features: rows of the tables by what picks one of their entries
            whole = torch.cat(tables, -1)
            picks = torch.eye(whole.shape[1]).to(whole)
            features = whole[layout.kept_ids], picks[layout.kept_ids]
            if len(tables) == 2:
                features = *features, picks[len(whole) :], whole.new_zeros(len(self._sizes))
            return self._topic_specs(layout, words, initial, scores, *features, out_of=lambda ids: whole[ids])
        emission = BlockEmission(layout, self.block_of_word, words.log_softmax(scores))
        kind = HierarchicalTables if len(tables) == 2 else TableTransition
        return kind(layout, initial, *tables, reset_id=self.reset_id, emission=emission), emission

    def _topic_specs(
        self, layout: BlockLayout, words: WordGroups, initial: Tensor, scores: list[Tensor], *features: Tensor, **options: Any
    ) -> tuple[BlockTransition, BlockEmission]:
        wide, prior = TopicLayout(layout, self.num_topics), self.topic_prior.log_softmax(-1)
        if self._is_learning and self._learns_lines_apart:
            mix = prior.expand(self.num_topics, -1) + 0 * self.topic_kept  # processes that share steps wait for its slope
        else:
            same = torch.eye(self.num_topics, device=prior.device, dtype=torch.bool)
            anew = nn.functional.logsigmoid(-self.topic_kept) + prior
            mix = torch.where(same, torch.logaddexp(nn.functional.logsigmoid(self.topic_kept), anew), anew)
        end = None if self.reset_id is None else int(words.block_of_word[self.reset_id])
        lifts = self.topic_blocks, self.topic_starts
        emission = TopicEmission(wide, self.block_of_word, *topic_norms(words, scores, self.topic_words))
        return TopicTransition(wide, initial, prior, mix, end, *lifts, *features, **options), emission

    def _thinned(self, features: Tensor) -> Tensor:
        """Features (..., h) with some of them left out in training."""
        return dropout(features, self.feature_dropout, self._is_learning) if self.feature_dropout else features

    def _out(self, embedding: Tensor) -> Tensor:
        out = self._thinned(self.out_layer(embedding))
        return out if self._config["temperature"] == 1 else out / self._config["temperature"]

    # ---------------------------------------------------------------- learning
    methods = ("sgd",)

    @undisturbed
    def fit(
        self,
        x: Any,
        lengths: Any = None,
        *,
        validation: Any = None,
        folder: Any = None,
        resume: bool = False,
        seed: int | None = None,
        progress: bool = False,
        fixed: str | Sequence[str] | Mapping[str, Any] = (),
        **options: Any,
    ) -> Self:
        """From text to a trained model; ``history`` says afterwards how it went.

        A model without words gets them from x, with Brown clusters as blocks. Where there is held-out text the model ends with
        the parameters that were best on it. Ctrl-C keeps what was learned.

        Args:
            x: a ``Corpus``, a ``Text``, sentences (strings, or lists of words), or word ids, ragged or (B, T) with ``lengths``.
            validation: held-out text like x; by default that of a corpus.
            folder: of a run with checkpoints, metrics and blocks, which ``resume`` continues; None keeps nothing.
            seed: makes the fit repeatable; None draws from torch's generator.
            progress: show a bar.
            fixed: parameters (names of ``named_parameters()``), or by a mapping to masks entries of them, that keep their
                values, of a model that has its words; see :meth:`Estimator.fit <pplseq.models.estimator.Estimator.fit>`.
            **options: topics that are known, device, num_blocks, blocks, epochs, max_time, lr, batch_size, ...: see
                :func:`pplseq.models.vlhmm.fit.fit`.

        Returns:
            The model itself.

        Raises:
            ValueError, TypeError: for data or options that do not fit.
        """
        from pplseq.models.vlhmm.fit import fit

        fit(self, x, lengths, validation=validation, folder=folder, resume=resume, seed=seed, progress=progress, fixed=fixed,
        **options)
        return self

    def split(self, factor: int, **options: Any) -> VLHMM:
        """A model whose states are each so many near-copies of this one's: see :func:`pplseq.models.vlhmm.growth.split`."""
        from pplseq.models.vlhmm.growth import split

        return split(self, factor, **options)

    def topics(self, x, lengths=None):
        """p(topic at each step | x), (B, T, C), 0 at padded steps; of lists, a list of (T_i, C).

        Args:
            x, lengths: as for ``score``: sentences, or a text whose sentences end in ``<eos>``.

        Cost: as of a step of training.
        """
        chain = self._posterior(x, lengths)[1]
        if self.num_topics == 1:
            raise ValueError("topics: the model has one topic; make it with num_topics, and fit it")
        found = chain.marginals()
        probs = found.probs.unflatten(-1, (self.num_topics, -1)).sum(-1)
        if found.wide_places is not None and found.wide_probs is not None:
            wide = found.wide_probs.view(len(found.wide_probs), len(self._sizes), self.num_topics, -1).sum((1, 3))
            probs[found.wide_places[:, 0], found.wide_places[:, 1]] = wide
        return as_given(probs, self._results_like(x))

    def lifted_words(self, num_words: int = 10) -> list[list[str]]:
        """The words that each topic makes more likely than topics do on the whole, by nats, the most first: C lists."""
        self._check_fitted()
        if self.num_topics == 1 or self.vocabulary is None:
            raise ValueError("lifted_words: a model of several topics that was fitted to words has some")
        checks.count("num_words", num_words)
        lifts = self.topic_words.detach() - self.topic_words.detach().mean(-1, keepdim=True)
        order = lifts.topk(min(num_words, len(lifts)), 0).indices.T.tolist()
        return [[self.vocabulary.words[word] for word in row] for row in order]

    def _check_fitted(self) -> None:
        self._check_words_known()
        super()._check_fitted()

    def _as_batch(self, x, lengths=None, *, states=None) -> Batch:
        self._check_words_known()
        return super()._as_batch(x, lengths, states=states)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, as scikit-learn has them; ``blocks`` where the words are known."""
        return self.config if self.num_words is None else self.config | {"blocks": self.block_of_word.tolist()}

    # ---------------------------------------------------------------- the program
    @one_chain
    def model(
        self,
        x: Tensor | None = None,
        lengths: Tensor | None = None,
        start: Belief | None = None,
        *,
        states: Tensor | None = None,
        **sizes: Unpack[Sizes],
    ):
        """The generative program.

        Args:
            x: (B, T) word ids, ``MISSING`` (-1) for a missing word; None to generate.
            lengths: (B,) valid steps, or None for all.
            start: the belief that the previous segment ended with.
            states: (B, T) observed states, negative where unknown.
            **sizes: how much to generate, or what a mini-batch stands for: :class:`~pplseq.models.base.Sizes`.
        """
        given = self.given(x, lengths, start, states=states, **sizes)
        transition, emission = self.specs()
        z, word = start, None
        with given.plate:
            for t in markov(given.steps):
                with given.valid(t):
                    z = pyro.sample(f"z_{t}", transition(z, inputs=given.before(t, word)), obs=given.state(t))
                    with given.seen(t):
                        word = pyro.sample(f"x_{t}", emission(z), obs=given.value(t))
        return x

    def given(self, x, lengths=None, start=None, **known) -> Given:
        given = super().given(x, lengths, start, **known)
        given.first = self._word_before(start, given.shape[0])
        return given

    def _word_before(self, start: Belief | None, num_rows: int) -> Tensor | None:
        """(B,) the word before the first one, an id that never resets where there is none; None without resets."""
        if self.reset_id is None:
            return None
        if start is None or start.last_observation is None:
            return torch.full((num_rows,), MISSING - 1, device=self.block_of_word.device)
        return start.last_observation

    def _check_observations(self, x: Tensor) -> None:
        self._check_words_known()
        super()._check_observations(x)

    def _check_words_known(self) -> None:
        """Raises NotFittedError for a model that was made without words and has not been fitted."""
        if self.num_words is None:
            raise checks.NotFittedError(
                f"a VLHMM of {self.num_states} states without words: fit it to a text, or make it with num_words and blocks"
            )

    @property
    def _cells_per_token(self) -> int:
        """K^2, the transition cells that one seen word costs."""
        return int(self._sizes.max()) ** 2

    @property
    def config(self):
        return dict(self._config)

    def save(self, folder) -> Path:
        self._check_words_known()
        return super().save(folder)

    @classmethod
    def from_config(cls, config: dict, tensors: dict[str, Tensor]) -> VLHMM:
        if "block_of_word" not in tensors:
            raise ValueError("model.safetensors: no block_of_word in it, so this is not a vlhmm; was it saved by pplseq?")
        count = config.get("num_topics", 1)
        if count != 1 and tuple(tensors["topic_prior"].shape if "topic_prior" in tensors else ()) != (count,):
            raise ValueError(f"model.safetensors: no topic_prior of {count} topics in it, of which the configuration is")
        return cls(blocks=tensors["block_of_word"], **config)


def _whole(name: str, values) -> Tensor:
    """A 1-d tensor of integers."""
    values = checks.numbers(name, values)
    if values.is_floating_point() or values.dtype == torch.bool or values.dim() != 1:
        raise TypeError(f"{name} must be a list of integers, got {values.dtype} of shape {tuple(values.shape)}")
    return values.long()
