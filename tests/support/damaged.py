"""Stored folders with files that were damaged as disks, editors and people do, and what their readers make of them."""

import json
import random
import shutil

import torch
from click.testing import CliRunner

import pplseq
from pplseq.cli import main
from pplseq.data.vocabulary import Vocabulary
from pplseq.folder import FolderError, seal, sealed
from pplseq.recipes.text.questions import score
from pplseq.runs.loop import TRAINING
from support.faulty_disk import timeless, warm
from support.report_models import WORDS, tiny_model

LINES = ["the cat", "the the cat"]
NAMED = ("is damaged", " damaged", "not in their order", "lines missing", " is missing")  # how a note says so that ends nothing


def damage(path, draw):
    """Change a file as disks, editors and people do; what was done, in a word."""
    raw = bytearray(path.read_bytes())
    kind = draw.choice(["flip", "cut", "grow", "swap", "empty", "remove", "zero", "edit"])
    place = draw.randrange(max(len(raw), 1))
    lines = bytes(raw).split(b"\n")
    if kind == "remove":
        path.unlink()
        return kind
    if kind == "flip" and raw:
        raw[place] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del raw[place:]
    elif kind == "grow":
        raw += draw.randbytes(draw.randint(1, 64))
    elif kind == "swap" and len(lines) > 2:
        a, b = draw.sample(range(len(lines) - 1), 2)
        lines[a], lines[b] = lines[b], lines[a]
        raw = bytearray(b"\n".join(lines))
    elif kind == "empty":
        raw = bytearray()
    elif kind == "zero":
        raw[place : place + 512] = bytes(len(raw[place : place + 512]))
    else:
        digits = [k for k, byte in enumerate(raw) if 48 <= byte < 58]
        if digits:
            raw[draw.choice(digits)] = draw.choice(b"0123456789")
    path.write_bytes(raw)
    return kind


def stored(tmp_path):
    """name -> (folder, function that answers from it) of a model and of a checkpoint."""
    model = tiny_model()
    model.vocabulary = Vocabulary(WORDS)
    model.save(tmp_path / "model")
    TRAINING.write(tmp_path / "last", {"state": {"best": 1.5, "step": 3}}, tensors={"w": torch.arange(6.0)})

    def answers(folder):
        read = pplseq.load(folder)
        return [score(read, read.vocabulary, line.split()) for line in LINES]

    def state(folder):
        read = TRAINING.read(folder)
        return read.header, {name: value.tolist() for name, value in read.tensors.items()}

    return {"model": (tmp_path / "model", answers), "checkpoint": (tmp_path / "last", state)}


def stored_runs(place, data, runs):
    """name -> (folder, function that answers from it) of runs, streams and counts, asked by the command.

    Args:
        place: an empty folder. data: as of `write_data`. runs: as of `small_runs`, with counts.
    """
    rows, text, words = data["rows.csv"], data["text.txt"], b"the cat sees a dog\nthe bird\n"
    fit = ["--num-states", 2, "--max-iterations", 1, "--blocks", 2, "--out", place / "new"]
    tagged = [["tag", "run", "RUN", "--json", "--probabilities", "--format", "words"]]
    asked = {
        "vlhmm": ("run", [["query", "RUN", "score"], ["evaluate", "RUN"], ["info", "RUN"]]),
        "lstm": ("run", [["query", "RUN", "score"], ["report", "RUN", "--out", place / "page.html"], ["info", "RUN"]]),
        "lds": ("run", [["evaluate", "RUN", rows], ["query", "RUN", "smooth", rows]]),
        "iohmm": ("run", [["evaluate", "RUN", rows], ["query", "RUN", "effects"]]),
        "strings": ("run", [["query", "RUN", "produce"], ["query", "RUN", "automaton"], ["info", "RUN"]]),
        "text-lds": ("run", [["query", "RUN", "next-word"]]),
        "tagger": ("run", tagged),
        "latent": ("run", tagged),
        "personalize": ("state", [["compare-streams", "RUN", f"unigram:{text}", "--stream", text]]),
        "count": ("counts", [["train", "text-lds", "RUN", *fit]]),
    }  # fmt: skip
    found = {}
    for name, (folder, commands) in asked.items():
        (place / name).mkdir(parents=True)
        warm(runs[name](place / name))
        given = b"01\n110\n" if name == "strings" else words
        found[name] = place / name / folder, Asked(commands, given, place / "new")
    return found


class Refused(Exception):
    """A command that ended with an error that names something, or said what is damaged."""


class Asked:
    """What commands say of a folder, called RUN in them."""

    def __init__(self, commands, given, leaves):
        self.commands, self.given, self.leaves = commands, given, leaves

    def __call__(self, folder):
        told = []
        for command in self.commands:
            shutil.rmtree(self.leaves, ignore_errors=True)
            arguments = [str(folder) if part == "RUN" else str(part) for part in command]
            result = CliRunner().invoke(main, arguments, input=self.given)
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                raise result.exception
            if result.exit_code or any(word in result.output for word in NAMED):
                raise Refused(result.output)
            lines = (json.loads(line) if line.startswith("{") else line for line in result.stdout.splitlines())
            told.append([timeless(line) for line in lines])
            if command[0] == "info":  # whose order is that of the entries of files
                told[-1].sort(key=str)
        return told


class Damages:
    """Damages a file of a folder, and looks what its reader makes of it.

    Args:
        folder: a stored one, which is left alone. ask: from such a folder to its answers. broken: where copies are damaged.
    """

    def __init__(self, folder, ask, broken, seed=0):
        self.folder, self.ask, self.broken, self.random = folder, ask, broken, random.Random(seed)
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(folder, broken)
        self.expected = ask(broken)
        self.files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())

    def damage(self):
        """None where all is well after a damage, else what is wrong."""
        folder, broken = self.folder, self.broken
        shutil.rmtree(broken)
        shutil.copytree(folder, broken)
        path = self.random.choice(self.files)
        kind = damage(broken / path, self.random)
        same = (broken / path).is_file() and (broken / path).read_bytes() == (folder / path).read_bytes()
        try:
            return None if self.ask(broken) == self.expected else f"{path}, {kind}: another answer"
        except (FolderError, FileNotFoundError, Refused) as error:
            return f"{path}, {kind}: refused though nothing changed: {error}" if same or not str(error) else None
        except Exception as error:
            return f"{path}, {kind}: {type(error).__name__}: {error}"


class Forgeries(Damages):
    """The same of what a stranger wrote: an entry of a header is another one, and all checksums are right."""

    VALUES = (None, True, -1, 0, 7, 1.5, "x", "", [], {}, [1], ["x"], {"a": 1}, [[]])

    def damage(self):
        """None where what was forged is refused by name or does no harm, else what is wrong."""
        folder, broken, draw = self.folder, self.broken, self.random
        shutil.rmtree(broken)
        shutil.copytree(folder, broken)
        contents = {path: json.loads((broken / path).read_text()) for path in self.files if path.suffix == ".json"}
        contents = {path: content for path, content in contents.items() if "sha256" in content}
        path = draw.choice(list(contents))
        at, own = contents[path], ("sha256", "format", "version")
        *within, name = draw.choice([place for place in _places(at) if place[0] not in own])
        for part in within:
            at = at[part]
        value = draw.choice([*self.VALUES, ...])
        if value is ...:
            del at[name]
        else:
            at[name] = value
        (broken / path).write_text(sealed({key: part for key, part in contents[path].items() if key != "sha256"}))
        for other, outer in contents.items():  # those that have checksums of this one
            inner = path.relative_to(other.parent).as_posix() if path.is_relative_to(other.parent) else None
            if other != path and inner in outer.get("files", ()):
                seal(broken / other, {key: part for key, part in outer.items() if key not in ("files", "sha256")})
        told = f"{path}, {'.'.join(map(str, (*within, name)))} = {value!r}"
        try:
            self.ask(broken)
        except (FolderError, FileNotFoundError, Refused) as error:
            return None if str(error) and "Traceback" not in str(error) else f"{told}: {error}"
        except Exception as error:
            return f"{told}: {type(error).__name__}: {error}"


def _places(content, place=()):
    """Where the entries of JSON are, from the outside in; of long lists the first ones."""
    parts = content.items() if isinstance(content, dict) else enumerate(content[:3]) if isinstance(content, list) else ()
    for key, part in parts:
        yield (*place, key)
        yield from _places(part, (*place, key))


def wrong_answers(place, number, seed=0):
    found = []
    for name, (folder, ask) in stored(place).items():
        trials = Damages(folder, ask, place / "broken", seed)
        found += [f"{name}, {wrong}" for _ in range(number // 2) if (wrong := trials.damage()) is not None]
    return found
