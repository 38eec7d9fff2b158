"""Settings of models of words: of training, evaluation, questions and reports."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pplseq import checks
from pplseq.recipes.recipe import Question, ReportSettings, RunSettings, UseSettings
from pplseq.recipes.settings import Bounds, setting

NON_NEGATIVE = partial(checks.positive, zero=True)
SHARE = partial(checks.share, interval="[0, 1)")


# ---------------------------------------------------------------- settings of training
GROWN = "grown"  # the folder in a run's that holds its smaller sizes


@dataclass(kw_only=True)
class Reading:
    """The text.

    Args:
        min_count: words rarer than this in the training text become <unk> (default: 2 where needed).
        max_vocabulary: keep this many words, the most frequent.
        lower: lower-case the text.
        units: what is a word: characters or bytes of a text without spaces.
    """

    min_count: int | None = setting(None, check=checks.count)
    max_vocabulary: int | None = setting(None, check=checks.count)
    lower: bool = False
    units: Literal["words", "characters", "bytes"] = "words"


@dataclass(kw_only=True)
class Samples:
    """Texts of a language model (DATA samples:...).

    Args:
        num_samples: texts that are drawn.
        sample_length: tokens of a text at most, without its end; a longer one is cut.
    """

    num_samples: int = setting(10_000, check=checks.count)
    sample_length: int = setting(64, check=checks.count)


def reading(settings: Any) -> dict[str, Any]:
    """How a text was read, as `load_corpus` takes it; the seed is of the split of a single file."""
    return {name: getattr(settings, name) for name in ("min_count", "max_vocabulary", "lower", "units", "seed")}


@dataclass(kw_only=True)
class Batches:
    """Batches.

    Args:
        protocol: streams with the belief carried over, or sentences.
        shuffle: what is permuted each epoch.
        batch_size: streams B (carried).
        segment_length: tokens T of each stream in a step (carried).
        batch_tokens: tokens of a step (sentence).
    """

    protocol: Literal["carried", "sentence"] = "carried"
    shuffle: Literal["line", "article", "none"] = "line"
    batch_size: int = setting(16, check=checks.count)
    segment_length: int = setting(32, check=checks.count)
    batch_tokens: int = setting(512, check=checks.count)


@dataclass(kw_only=True)
class Descent:
    """Optimisation.

    Args:
        lr: AdamW's learning rate.
        weight_decay: AdamW's weight decay.
        clip: largest gradient norm, or none.
        validate_per_epoch: validations per epoch.
        patience: validations without a new best before the learning rate is divided by 4 (schedule plateau), or none.
        schedule: learning rate divided by 4 when validation stalls, falling linearly to zero over --epochs, or over the last
            part of --max-time (the default where that is given; else plateau).
        decay: that part, as a share.
        matmul_precision: of products of matrices in training, whose sums are float32: factors in bfloat16 where the processor
            has them (auto), float32, or tf32 on a GPU.
        log_interval: steps between two records in metrics.jsonl.
    """

    lr: float = setting(0.003, check=checks.positive)
    weight_decay: float = setting(0.0, free=True, check=NON_NEGATIVE)
    clip: float | None = setting(5.0, check=checks.positive)
    validate_per_epoch: int = setting(4, check=checks.count)
    patience: int | None = setting(4, check=partial(checks.count, least=0))
    schedule: Literal["plateau", "linear", "time"] | None = None
    decay: float = setting(0.6, check=partial(checks.share, interval="(0, 1]"))
    matmul_precision: Literal["auto", "float32", "bfloat16", "tf32"] = "auto"
    log_interval: int = setting(20, check=checks.count)


@dataclass(kw_only=True)
class TextRunSettings(RunSettings):
    """Its end.

    Args:
        epochs: passes over the training text (of EM: iterations), at most.
        early_stop: stop after this many validations without a new best.
        tensorboard: also write TensorBoard events into the run's folder.
    """

    epochs: int = setting(50, free=True, check=checks.count)
    early_stop: int | None = setting(None, free=True, check=checks.count)
    tensorboard: bool = setting(False, free=True)


@dataclass(kw_only=True)
class VLHMMSettings(Reading, Samples, Batches, Descent, TextRunSettings):
    """The model.

    Args:
        batch_size: streams B (carried); default 64, or 16 for short texts.
        lr: AdamW's learning rate (default .006 for 64 streams, .003 for 16, by the root of their number).
        num_states: states Z.
        num_blocks: blocks M of words; each has Z / M states.
        block_sizes: states of a block: the same for all, or more for blocks of frequent words (by the root of their counts).
        blocks: how they are found: brown, uniform, none, or a `paths` file written by `pplseq cluster`.
        eos_block: give <eos> a block of its own.
        exchange_passes: passes that improve the Brown clusters word by word (3 gain 3 % of information).
        start: of the parameters: drawn, or set to the class bigrams of the text (of the hierarchical transition).
        grow_from: folder of a run with fewer states: each becomes so many near-copies, in its blocks of words.
        grow: sizes in place of num_states, each trained from the one before with twice its share of max_time.
        hidden_size: width h of the state embeddings and residual layers.
        transition: one softmax over all states, or over blocks and then the states of the block, where nothing grows with Z^2.
        parameterization: of the tables of states.
        tied: one embedding table for start, transition and emission.
        shared_layer: start and emission share one residual layer.
        state_dropout: share of each block's states left out of a training step.
        feature_dropout: share of each state's features left out of a training step.
        final_dropout: state dropout to which it falls together with the learning rate (default: it stays).
        reset: after <eos> the state starts afresh, in training and evaluation.
        initialization: of the embeddings.
        init_scale: standard deviation of the normal initialisation.
        temperature: divides the transition scores; sqrt(hidden) keeps bfloat16 honest.
        normalizer_dtype: of products in the training normaliser; evaluation is exact.
        num_topics: topics C that last over sentences: C Z states whose steps cost little more.
        topic_persistence: p(the topic is kept behind <eos>) that is held (default: learned, from lines in their order).
        topic_decay: weight decay of what topics add to scores.
    """

    batch_size: int | None = setting(None, check=checks.count)  # pyright: ignore[reportIncompatibleVariableOverride]
    lr: float | None = setting(None, check=checks.positive)  # pyright: ignore[reportIncompatibleVariableOverride]
    num_states: int = setting(4096, check=checks.count)
    num_blocks: int = setting(128, check=checks.count)
    block_sizes: Literal["even", "frequency"] = "even"
    blocks: str = "brown"
    eos_block: bool = True
    exchange_passes: int = setting(0, check=partial(checks.count, least=0))
    start: Literal["random", "counts"] = "random"
    grow_from: Path | None = None
    grow: tuple[int, ...] = setting((), check=checks.count)
    hidden_size: int = setting(256, check=checks.count)
    transition: Literal["softmax", "hierarchical"] = "softmax"
    parameterization: Literal["independent", "factored", "scalar"] = "independent"
    tied: bool = setting(True, flag="--tied/--untied")
    shared_layer: bool = False
    state_dropout: float = setting(0.25, free=True, check=SHARE)
    feature_dropout: float = setting(0.0, free=True, check=SHARE)
    final_dropout: float | None = setting(None, check=SHARE)
    reset: bool = True
    initialization: Literal["normal", "xavier"] = "normal"
    init_scale: float = setting(0.1, check=checks.positive)
    temperature: float = setting(1.0, check=checks.positive)
    normalizer_dtype: Literal["float32", "bfloat16"] = "float32"
    num_topics: int = setting(1, check=checks.count)
    topic_persistence: float | None = setting(None, check=partial(checks.share, interval="(0, 1)"))
    topic_decay: float = setting(0.2, free=True, check=partial(checks.positive, zero=True))

    def __post_init__(self) -> None:
        if Path(self.blocks).is_file():  # the run's folder keeps the path, and --resume may be called from anywhere
            self.blocks = str(Path(self.blocks).resolve())
        if self.grow_from is not None:
            self.grow_from = Path(self.grow_from).resolve()
        if self.grow:
            if self.grow_from is not None or self.blocks == "none" or self.block_sizes != "even":
                raise ValueError("grow: the first size is new, in even blocks; leave out grow_from, block_sizes, blocks = none")
            _check_sizes(self.grow, self.num_blocks)
            self.num_states = self.grow[-1]


def _check_sizes(sizes: tuple[int, ...], num_blocks: int) -> None:
    """Raises ValueError for sizes that do not grow into each other, or fewer than two."""
    if len(sizes) < 2:
        raise ValueError(f"grow: give the sizes in order, at least two, for example 2048,8192; got {','.join(map(str, sizes))}")
    for small, large in zip((num_blocks, *sizes), sizes, strict=False):
        if large % small or large == small != num_blocks:
            raise ValueError(f"grow: sizes are multiples of the one before, the first of num_blocks; {large} is not of {small}")


@dataclass(kw_only=True)
class HMMSettings(Reading, Samples, Batches, Descent, TextRunSettings):
    """The model.

    Args:
        num_states: states Z.
        method: EM on sentences, or gradient on batches.
        concentration: Dirichlet concentration of EM's tables; 1 is maximum likelihood.
    """

    num_states: int = setting(64, check=checks.count)
    method: Literal["em", "sgd"] = "em"
    concentration: float = 1.01

    def __post_init__(self) -> None:
        if not self.concentration >= 1.0:
            raise ValueError(
                "concentration must be at least 1 (below it the most probable tables are degenerate), "
                f"got {self.concentration}"
            )


@dataclass(kw_only=True)
class NetworkSettings(Reading, Batches, Descent, TextRunSettings):
    """The model.

    Args:
        hidden_size: units of a layer.
        normalizer_dtype: of the products of the training softmax; evaluation is exact.
    """

    hidden_size: int = setting(256, check=checks.count)
    normalizer_dtype: Literal["float32", "bfloat16"] = "float32"
    lr: float = setting(0.001, check=checks.positive)


@dataclass(kw_only=True)
class LSTMSettings(NetworkSettings):
    """The LSTM.

    Args:
        num_layers: layers.
        dropout: share of the units left out of a training step.
    """

    num_layers: int = setting(2, check=checks.count)
    dropout: float = setting(0.3, check=SHARE)


@dataclass(kw_only=True)
class AWDLSTMSettings(NetworkSettings):
    """The LSTM with dropped weights.

    Args:
        hidden_size: units of the word vectors and of the last layer.
        num_layers: layers.
        width: units of the layers before the last.
        dropout: share of the units of word vectors and of the last layer left out of a training step.
        hidden_dropout: share of the units of the other layers.
        weight_dropout: share of the weights from a layer to itself.
        embedding_dropout: share of the words.
    """

    hidden_size: int = setting(400, check=checks.count)
    num_layers: int = setting(3, check=checks.count)
    width: int = setting(1150, check=checks.count)
    dropout: float = setting(0.4, check=SHARE)
    hidden_dropout: float = setting(0.25, check=SHARE)
    weight_dropout: float = setting(0.5, check=SHARE)
    embedding_dropout: float = setting(0.1, check=SHARE)


@dataclass(kw_only=True)
class FeedForwardSettings(NetworkSettings):
    """The n-gram network.

    Args:
        order: length n of the n-grams: it sees n - 1 words.
        dropout: share of the units left out of a training step.
    """

    order: int = setting(5, check=checks.count)
    dropout: float = setting(0.3, check=SHARE)


@dataclass(kw_only=True)
class HMMRNNSettings(NetworkSettings):
    """The network with an HMM's recurrence.

    Args:
        hidden_size: states of its belief.
        dropout: share of the belief left out of a training step where it predicts.
    """

    hidden_size: int = setting(900, check=checks.count)
    dropout: float = setting(0.0, check=SHARE)
    # beliefs move slowly: 92 where .01 comes to 114 in `train hmm-rnn builtin:python --hidden-size 64 --epochs 6`
    lr: float = setting(0.03, check=checks.positive)


# ---------------------------------------------------------------- settings of use
@dataclass(kw_only=True)
class EvaluationSettings(UseSettings):
    """The evaluation.

    Args:
        split: of the corpus (default: test; a single file is taken whole).
        protocol: carried streams, sentences each from the start, or both.
        streams: streams of the carried protocol; several as 16,1 (default: 16, or such that each has 128 tokens).
        segment_length: tokens of a stream taken at once: speed and memory only (default: by the model's size).
        batch_tokens: tokens of sentences taken at once: speed and memory only (default: by the model's size).
        per_token: write word<TAB>log-probability (nats) of every token to this file, a column a protocol.
        vocabulary: the vocabulary DATA was made with: an error if it is not the model's.
        lower: lower-case DATA (default: as the run was trained).
        cluster: score the lines of DATA on the workers of a Dask cluster, tcp://HOST:PORT, or local:N for N processes; DATA may
            then be a URL, x.parquet#column or a pattern of files with *. Per sentence only.
        part_bytes: of a part, on a cluster (default: 4 MB).
    """

    split: Literal["train", "valid", "test"] | None = None
    protocol: Literal["carried", "sentence", "both"] = "both"
    streams: tuple[int, ...] = setting((), check=checks.count)
    segment_length: int | None = setting(None, check=checks.count)
    batch_tokens: int | None = setting(None, check=checks.count)
    per_token: Path | None = None
    vocabulary: Path | None = None
    lower: bool | None = None
    cluster: str | None = None
    part_bytes: int | None = setting(None, check=checks.count)


@dataclass(kw_only=True)
class AskSettings(UseSettings):
    """The question.

    Args:
        top: states or words listed.
        num_paths: best paths.
        num_samples: draws.
        length: words to draw: at most (20), or from and to (12-20, not counting <eos>).
        temperature: below 1: more probable words.
        seed: of the draws.
        allow_unknown: whether <unk> may be proposed.
        eos: end every line with <eos> (default: yes, except for next-word and continue).
        gap: the word that stands for a gap (default: _ for infill, none otherwise).
        lower: lower-case the lines (default: as the run was trained).
    """

    top: int = setting(5, check=checks.count)
    num_paths: int = setting(1, check=checks.count)
    num_samples: int | None = setting(None, check=partial(checks.count, least=0))
    length: Bounds = 20
    temperature: float = 1.0
    seed: int = setting(0, check=checks.seed)
    allow_unknown: bool = setting(True, flag="--allow-unknown/--no-unknown")
    eos: bool | None = None
    gap: str | None = None
    lower: bool | None = None


@dataclass(kw_only=True)
class ConstrainedAsking(AskSettings):
    """What the text must satisfy, exactly.

    Args:
        containing: a phrase that must stand in it; may be repeated.
        containing_any: phrases of which one must stand in it; may be repeated.
        excluding: a phrase that must not stand in it; may be repeated.
        in_order: phrases that must stand in it, each behind the one before; may be repeated.
        matching: a regular expression over words that it must match as a whole, like 'the (stock | bond) .*'; may be repeated.
        word_class: a class for --matching, as NAME=WORD,WORD; <NAME> stands for it; may be repeated.
        gap_length: words at each gap: a number, or from and to (1-4).
        whole: the constraint is about the line and what is drawn behind it together.
        max_states: of the constraint's automaton.
    """

    containing: tuple[str, ...] = setting((), repeat=True)
    containing_any: tuple[str, ...] = setting((), repeat=True)
    excluding: tuple[str, ...] = setting((), repeat=True, flag="--not")
    in_order: tuple[str, ...] = setting((), repeat=True)
    matching: tuple[str, ...] = setting((), repeat=True)
    word_class: tuple[str, ...] = setting((), repeat=True)
    gap_length: Bounds = 1
    whole: bool = False
    max_states: int = setting(10_000, check=checks.count)


@dataclass(kw_only=True)
class NetworkReportSettings(ReportSettings):
    """What it shows.

    Args:
        data: measure on this text file (default: test text of the run's corpus).
        tokens: tokens of that text used, from its start, in whole lines.
    """

    data: str | None = None
    tokens: int = setting(10_000, check=partial(checks.count, least=2))


@dataclass(kw_only=True)
class TextReportSettings(ReportSettings):
    """What it shows.

    Args:
        sentence: show the posterior of this sentence; may be repeated (default: two typical lines of the text).
        data: measure states on this corpus or text file (default: validation text of the run's corpus).
        tokens: tokens of that text used, from its start, in whole lines.
    """

    sentence: tuple[str, ...] = setting((), repeat=True)
    data: str | None = None
    tokens: int = setting(10_000, check=partial(checks.count, least=2))


QUESTIONS = {
    "score": Question("log p(x) and each word's share, in nats"),
    "filter": Question("p(z_t | x_1..x_t): states given the words so far", ("top",)),
    "smooth": Question("p(z_t | x_1..x_T): states given the whole line", ("top",)),
    "decode": Question("the most probable state path (--num-paths for the k best)", ("num_paths",)),
    "topics": Question("what the line is about, of a model with topics", ("top",)),
    "sample": Question("state paths drawn from the posterior", ("num_samples", "seed")),
    "next-word": Question("the most probable next words", ("top", "allow_unknown")),
    "infill": Question("the words at the gaps, written _", ("top", "num_samples", "seed", "allow_unknown")),
    "continue": Question(
        "sentences that go on from the line", ("length", "num_samples", "temperature", "seed", "allow_unknown")
    ),
}
CONSTRAINTS = ("containing", "containing_any", "excluding", "in_order", "matching", "word_class")
OWN = {"infill": ("gap_length", "max_states"), "continue": ("whole", "max_states")}  # what a question reads besides
CONSTRAINED_QUESTIONS = QUESTIONS | {
    name: replace(QUESTIONS[name], reads=(*QUESTIONS[name].reads, *CONSTRAINTS, *own)) for name, own in OWN.items()
}
