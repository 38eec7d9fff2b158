"""The streams of many users: each is kept in a folder of its own, and those that were used last are in memory."""

from __future__ import annotations

import copy
import hashlib
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from pplseq import checks
from pplseq.sources.opening import Opened, open_all
from pplseq.sources.settings import StreamOptions
from pplseq.sources.stream import BESIDE, SETTINGS, PersonalStream, resumed_options


class PersonalStreams:
    """The streams of many users by name, of whom only some are in memory; the others are on the disk, and none is lost.

    Example::

        with PersonalStreams(["ngram:general.txt"], "users/", most_open=200) as streams:
            streams["ann"].read("see you at the quay")
            print(streams["ann"].suggest("see you at the q"))

    A stream that was not asked for since ``most_open`` others were is saved and closed, and opened again when its user comes
    back: the numbers are those of streams that are never closed. Large parts of sources, as models and n-grams, are in memory
    once. A user's stream is one thread's at a time.

    Args:
        sources: specs as of :meth:`PersonalStream.open`; a single one has counts and a cache of each stream beside it, unless
            it is ``alone``.
        folder: of the users' folders. most_open: streams in memory.
        save_every, **chosen: as of :meth:`PersonalStream.open`.

    Raises:
        ValueError, FileNotFoundError, TypeError: as :meth:`PersonalStream.open`; of a user when the stream is asked for.
    """

    def __init__(
        self, sources: str | Sequence[str], folder: str | Path, *, most_open: int = 100, alone: bool = False,
        save_every: int = 100, **chosen: Any,
    ):  # fmt: skip
        names = [field.name for field in fields(StreamOptions)]
        for name in chosen:
            if name not in names and name not in SETTINGS:
                raise TypeError(f"{name}: no option or setting of a stream; there are: {', '.join([*names, *SETTINGS])}")
        self.folder, self.most_open, self.save_every = Path(folder), checks.count("most_open", most_open), save_every
        self._options = {name: value for name, value in chosen.items() if name in names}
        self._settings = {name: value for name, value in chosen.items() if name in SETTINGS}
        specs = [sources] if isinstance(sources, str) else list(sources)
        if len(specs) == 1 and not alone and not specs[0].startswith("words:"):
            specs += BESIDE
        self._sources = open_all(specs, StreamOptions(**self._options))
        self._open: OrderedDict[str, PersonalStream] = OrderedDict()

    def place(self, user: str) -> Path:
        """The folder of a user, whose name it begins with as far as every system allows."""
        if not isinstance(user, str) or not user:
            raise TypeError(f"user must be a name, got {checks.shown(user)}")
        readable = re.sub("[^a-z0-9]+", "-", user.lower())[:40].strip("-")
        return self.folder / f"{readable or 'user'}-{hashlib.sha256(user.encode()).hexdigest()[:16]}"

    def __getitem__(self, user: str) -> PersonalStream:
        """A user's stream, begun where there was none; it is the caller's until it is asked for no longer."""
        if (stream := self._open.get(user)) is not None:
            self._open.move_to_end(user)
            return stream
        folder = self.place(user)
        reading = resumed_options(folder, self._options)
        while len(self._open) >= self.most_open:
            self.close(next(iter(self._open)))
        opened = [_anew(source) for source in self._sources]
        stream = PersonalStream.of_sources(opened, self._settings, folder, reading, save_every=self.save_every)
        self._open[user] = stream
        return stream

    def __contains__(self, user: str) -> bool:
        """Whether a user has a stream, in memory or on the disk."""
        return user in self._open or self.place(user).is_dir()

    def close(self, user: str | None = None) -> None:
        """Saves and closes a user's stream, or all."""
        for name in [*self._open] if user is None else [user]:
            stream = self._open.pop(name, None)
            if stream is not None:
                with stream:
                    pass

    def __enter__(self) -> PersonalStreams:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _anew(opened: Opened) -> Opened:
    """The same source at its beginning, for another stream."""
    source = opened.source
    if hasattr(source, "apart"):
        return opened._replace(source=source.apart())
    model = getattr(source, "model", None)  # which no stream changes
    return opened._replace(source=copy.deepcopy(source, {} if model is None else {id(model): model}))
