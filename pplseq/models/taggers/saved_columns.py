"""Real-valued features of taggers from files: embeddings of a trained `TextLDS`, states of a VL-HMM, vectors of words."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pplseq.threads import once, parsing

if TYPE_CHECKING:
    from pplseq.models.taggers.columns import Columns, ColumnSource, Sentences

Load = Callable[[Path], Any]

COLUMN_KINDS = EMBEDDINGS, STATES = "embeddings", "states"
DENSE_SCALE = 0.3  # of embeddings, unless column_scale is given; chosen on a tenth of CoNLL-2000 train


class SavedColumns:
    """What a model on disk says about each word; opened when it is first asked.

    Args:
        kind: "embeddings": of a run of ``train text-lds``, for each token of its sentence, or of a file of vectors, one a word
            (of ``query RUN types --out vectors.npz``). "states": posteriors of a run of ``train vlhmm`` or ``train hmm``.
        path: of the run or file, kept with the tagger, which finds it there again.
        load: from a run's folder to its model, with its vocabulary: :func:`pplseq.loading.load_text_model`.

    Raises:
        FileNotFoundError: nothing there. ValueError: something else, or a model without words; both when first asked.
    """

    def __init__(self, kind: str, path: str | Path, load: Load):
        self.kind, self.path, self.load = kind, Path(path).expanduser().resolve(), load
        if not self.path.exists():
            raise FileNotFoundError(f"{kind}: {self.path} is not there; expected a run's folder{self._or_file()}")

    def __repr__(self) -> str:
        return f"SavedColumns({self.kind!r}, {str(self.path)!r})"

    def _or_file(self) -> str:
        return " or an .npz file of `pplseq query RUN types --out FILE.npz`" if self.kind == EMBEDDINGS else ""

    @property
    def address(self) -> dict[str, str]:
        """What a tagger keeps of it: where it is, and what it holds."""
        return {"kind": self.kind, "path": str(self.path), "sha256": self.fingerprint}

    @once
    def fingerprint(self) -> str:
        """Of the vectors, or of the weights of the model (a run's best), when they are opened, or asked for before."""
        places = [self.path / name / "model.safetensors" for name in ("best", "last", "")]
        weights = next((path for path in (self.path, *places) if path.is_file()), None)
        if weights is None:
            return ""
        with weights.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @once
    def source(self) -> ColumnSource:
        """What computes them."""
        from pplseq.models.taggers.columns import EmbeddingColumns, PosteriorColumns, TypeColumns

        model = None if self.path.is_file() else self.load(self.path)
        _ = self.fingerprint  # of what the tagger learns from, whatever stands there when it is saved
        if model is None:
            return TypeColumns(*self._vectors())
        vocabulary = model.vocabulary
        needed = "embed_tokens" if self.kind == EMBEDDINGS else "posterior"
        if not hasattr(model, needed):
            run = "`pplseq train text-lds`" if self.kind == EMBEDDINGS else "`pplseq train vlhmm`"
            raise ValueError(f"{self.kind}: {self.path} holds a {type(model).__name__}; expected a run of {run}")
        if vocabulary.unknown_id is None:
            raise ValueError(
                f"{self.kind}: the words of {self.path} have no unknown one, but tagged text has new words; train it with "
                "--min-count 2"
            )
        forms = getattr(model, "forms", str)
        return (EmbeddingColumns if self.kind == EMBEDDINGS else PosteriorColumns)(model, vocabulary, forms)

    @parsing
    def _vectors(self) -> tuple[Any, Any]:
        """Vectors of words, and their vocabulary: words that it lacks have the mean vector."""
        import numpy as np

        from pplseq.data.vocabulary import Vocabulary

        if self.kind != EMBEDDINGS or self.path.suffix != ".npz":
            raise ValueError(f"{self.kind}: expected a run's folder{self._or_file()}, got the file {self.path}")
        with np.load(self.path, allow_pickle=False) as arrays:
            if not {"words", "embeddings"} <= set(arrays):
                raise ValueError(f"embeddings: {self.path} holds {', '.join(arrays)}; expected words and embeddings")
            words, vectors = arrays["words"].tolist(), arrays["embeddings"]
        if len(set(words)) < len(words):
            raise ValueError(
                f"embeddings: {self.path} has words more than once; expected vectors of words, by `pplseq query RUN types "
                "--out FILE.npz`; give the run itself for those of tokens"
            )
        unknown = "<unk>"
        if unknown not in words:
            words, vectors = [*words, unknown], np.concatenate([vectors, vectors.mean(0, keepdims=True)])
        return vectors, Vocabulary(tuple(words), unknown=unknown)

    @property
    def sparse(self) -> bool:
        return self.source.sparse

    @property
    def num_columns(self) -> int:
        return self.source.num_columns

    def __call__(self, sentences: Sentences) -> Columns:
        return self.source(sentences)


def with_columns(settings: dict[str, Any], load: Load) -> dict[str, Any]:
    """Settings of a tagger, with `embeddings` or `states`, the paths of models, as the `columns` that they are.

    Raises:
        ValueError: both, or columns besides.
    """
    given = [kind for kind in COLUMN_KINDS if settings.get(kind) is not None]
    rest = {name: value for name, value in settings.items() if name not in COLUMN_KINDS}
    if not given:
        return rest
    if len(given) > 1 or rest.get("columns") is not None:
        raise ValueError(f"{given[0]}: a tagger takes one kind of columns; give {EMBEDDINGS} or {STATES}")
    if given == [EMBEDDINGS]:
        rest = {"column_scale": DENSE_SCALE, **rest}
    return rest | {"columns": SavedColumns(given[0], settings[given[0]], load)}


def open_columns(tagger: Any, load: Load) -> None:
    """Gives a tagger that was loaded, and the members of a product, the columns they were trained with, where these are those
    of a model on disk.

    Raises:
        FileNotFoundError: the model is not there any more. ValueError: it is another one by now.
    """
    for member in getattr(tagger, "models", ()):
        open_columns(member, load)
    address = getattr(tagger, "column_address", None)
    if address is None:
        return
    columns = SavedColumns(address["kind"], address["path"], load)
    if columns.fingerprint != address.get("sha256", columns.fingerprint):
        raise ValueError(
            f"{columns.kind}: {columns.path} is not what this tagger was trained with; put that back, or train the tagger again"
        )
    tagger.columns = columns
