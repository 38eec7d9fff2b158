"""Where lines of words come from: files, folders of files, standard input, Hugging Face datasets."""

from __future__ import annotations

import contextlib
import difflib
import gzip
import io
import lzma
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from pplseq import checks

UNPACKED_BYTES = 1 << 26  # that any packed file may hold
CHUNK = 1 << 16  # bytes of a stream that are taken at a time where as many are there
NUL_BYTE = "a NUL byte, so this is not a UTF-8 text file; convert it to plain UTF-8 text"  # what is said of one
RATIO = "PPLSEQ_UNPACK_RATIO"
OPENERS = {".gz": gzip.open, ".xz": lzma.open}
SPLIT_PATTERNS = {
    "train": re.compile(r"train"),
    "valid": re.compile(r"valid|(?<![a-z])(dev|val)(?![a-z])"),
    "test": re.compile(r"(?<![a-z])test"),  # not "latest"
}
DATASETS_SPLITS = {"train": ("train",), "valid": ("validation", "valid", "dev"), "test": ("test",)}
_WORDS = re.compile(r"[^ \t\r\n]+")
# white space of Unicode, which is part of a word (1 000 with a no-break space), and at which str.split would cut
_INSIDE_WORDS = re.compile("[\v\f\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")
SPECIAL_WORDS = {"unknown?": str, "eos": str, "units?": str}  # how headers tell a vocabulary, as `check_content` takes it
UNITS = ("words", "characters", "bytes")
# what cannot stand in a list of words is shown: spaces, tabs and other controls as ␠, ␉, ..., these pictures by their numbers
_PICTURES = {code: chr(0x2400 + code) for code in range(0x21)}
_SHOWN = _PICTURES | {ord(picture): f"<U+{ord(picture):04X}>" for picture in _PICTURES.values()}
_CHARACTER_OF = {shown: chr(code) for code, shown in _SHOWN.items()}
_BYTES = tuple(chr(byte) if 0x21 <= byte <= 0x7E else f"<0x{byte:02X}>" for byte in range(256))
_BYTE_OF = {token: byte for byte, token in enumerate(_BYTES)}


def split_words(text: str) -> list[str]:
    """The words of a text: what stands between spaces, tabs and ends of lines. Other white space is part of a word."""
    return _WORDS.findall(text) if _INSIDE_WORDS.search(text) else text.split()


def tokens_of(text: str, units: str) -> list[str]:
    """The words, characters or bytes of a text, ends of lines among the last two."""
    if units == "words":
        return split_words(text)
    return [_SHOWN.get(ord(char), char) for char in text] if units == "characters" else [_BYTES[b] for b in text.encode()]


def is_shown(token: str) -> bool:
    """Whether a token stands for a character or byte that cannot stand there itself: ␠, <0xE4>."""
    return len(token) > 1 and token in _BYTE_OF or token in _CHARACTER_OF


def split_line(text: str, units: str) -> list[str]:
    """The words, characters or bytes of a line, without its end."""
    return tokens_of(text if units == "words" else text.removesuffix("\n").removesuffix("\r"), units)


def join_tokens(tokens: Iterable[str], units: str) -> str:
    """The text of words (with spaces between), characters or bytes; what is none of them, as `<unk>`, stands there as it is."""
    if units == "words":
        return " ".join(tokens)
    if units == "characters":
        return "".join(_CHARACTER_OF.get(token, token) for token in tokens)
    coded = (bytes([_BYTE_OF[token]]) if token in _BYTE_OF else token.encode() for token in tokens)
    return b"".join(coded).decode(errors="replace")


def existing_path(path: str | Path) -> Path:
    """The path, or a FileNotFoundError that suggests the closest name beside it."""
    checks.is_path("a file or folder", path)
    path = Path(path).expanduser()
    if path.exists():
        return path
    folder = path.parent
    if not folder.is_dir():
        raise FileNotFoundError(f"{path}: no such file (there is no folder {str(folder)!r}); check the path")
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    close = difflib.get_close_matches(path.name, names, n=1)
    found = f"did you mean {str(folder / close[0])!r}?" if close else f"{str(folder)!r} holds: {listing(names)}"
    raise FileNotFoundError(f"{path}: no such file or folder; {found}")


def listing(names: list[str], limit: int = 10) -> str:
    """Names for an error message, cut after `limit`."""
    shown = ", ".join(names[:limit]) if names else "nothing"
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


@contextlib.contextmanager
def opened(path: str | Path, expected: str = "a text file") -> Iterator[tuple[str, BinaryIO]]:
    """Name and bytes of a file, plain or packed as .gz or .xz; "-" is standard input.

    Raises:
        FileNotFoundError: no such file. ValueError: a folder, or a packed file that is damaged, while it is read.
    """
    if str(path) == "-":
        yield "<stdin>", sys.stdin.buffer
        return
    path = existing_path(path)
    if path.is_dir():
        raise ValueError(f"{path}: expected {expected}, got a folder; name one of the files in it")
    try:
        with OPENERS.get(path.suffix, open)(path, "rb") as stream:
            plain = path.suffix not in OPENERS
            yield str(path), cast(BinaryIO, stream) if plain else unpacked(stream, path, path.stat().st_size)
    except (lzma.LZMAError, zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise ValueError(f"{path}: damaged or not a {path.suffix} file ({error}); unpack or fetch it again") from error


class _Bounded(io.RawIOBase):
    """Bytes of a packed file, as long as they are not many times its size."""

    def __init__(self, stream: BinaryIO, path: str | Path, num_bytes: int) -> None:
        self.stream, self.path, self.count = stream, path, 0
        self.ratio = checks.limit(RATIO, 1000)
        self.most = max(UNPACKED_BYTES, self.ratio * num_bytes)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.stream.read(len(buffer))
        buffer[: len(data)] = data
        self.count += len(data)
        if self.count > self.most:
            raise ValueError(
                f"{self.path}: unpacks to more than {self.ratio:g} times its size; no text does, so it may be meant to fill "
                f"memory. Unpack it yourself, or allow more by the environment variable {RATIO}"
            )
        return len(data)


def unpacked(stream: Any, path: str | Path, num_bytes: int) -> BinaryIO:
    """The bytes of a packed file that is open; ValueError, while it is read, where they are far too many for its size."""
    return io.BufferedReader(_Bounded(stream, path, num_bytes), 1 << 16)


def available_lines(stream: BinaryIO) -> Iterator[list[bytes]]:
    """The whole lines that are there, again and again; the last one may lack its end."""
    rest = b""
    while chunk := stream.read1(CHUNK):  # type: ignore[attr-defined]  # of buffered streams
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


def read_text(path: str | Path, expected: str = "a text file") -> tuple[str, list[str]]:
    """Name of a file, see :func:`opened`, and its lines without their ends (which are \\n, \\r\\n or \\r; no form feeds).

    Raises:
        FileNotFoundError, ValueError: as :func:`opened`; for bytes that are not UTF-8.
    """
    with opened(path, expected) as (name, stream):
        data = stream.read()
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 at byte {error.start}; convert it") from None
    return name, text.removesuffix("\n").split("\n") if text else []


def read_lines(path: str | Path, *, lower: bool = False, units: str = "words") -> Iterator[list[str]]:
    """Read a text file line by line, each line split into words, characters or bytes.

    Args:
        path: a UTF-8 file, plain or packed as .gz or .xz; "-" reads standard input.
        lower: lower-case the text. units: see :class:`~pplseq.data.vocabulary.Vocabulary`.

    Yields:
        The words of each line; [] for a blank line.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a folder, a binary file (a NUL byte), or bytes that are not UTF-8, with the byte's offset.
    """
    with opened(path) as (name, stream):
        yield from decode_lines(stream, name, lower=lower, units=units)


def decode_lines(stream: BinaryIO, name: str, *, lower: bool = False, units: str = "words") -> Iterator[list[str]]:
    """Decode a stream of bytes into lines of words; errors name the byte's offset in the (unpacked) stream."""
    offset = 0
    for number, raw in enumerate(stream, start=1):
        if b"\0" in raw:
            raise ValueError(
                f"{name}: byte {offset + raw.index(0)} (line {number}) is NUL, so this is not a UTF-8 text file; "
                "convert it to plain UTF-8 text"
            )
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}: byte {offset + error.start} (line {number}) is 0x{raw[error.start]:02x}, which is not UTF-8 "
                "text; convert the file to UTF-8 (for example with iconv)"
            ) from error
        if number == 1:
            line = line.removeprefix("\ufeff")  # the byte order mark some editors write
        yield split_line(line.lower() if lower else line, units)
        offset += len(raw)


def find_splits(folder: Path) -> dict[str, Path]:
    """The training, validation and test file of a folder, by name.

    Returns:
        "train", and "valid" and "test" where they exist: files whose name contains train; valid, dev or val; test.

    Raises:
        ValueError: no training file, or two files for one split; lists what was found.
    """
    files = sorted(entry for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith("."))
    found = {}
    for split, pattern in SPLIT_PATTERNS.items():
        matches = [file for file in files if pattern.search(file.name.lower())]
        if len(matches) > 1:
            names = listing([file.name for file in matches])
            raise ValueError(
                f"{folder}: {len(matches)} files could be the {split} text ({names}); leave one, or name a single file"
            )
        if matches:
            found[split] = matches[0]
    if "train" not in found:
        raise ValueError(
            f"{folder}: no file whose name contains 'train'; found {listing([file.name for file in files])}. "
            "Expected *train*, *valid* (or dev, val) and *test* text files; or name a single file"
        )
    return found


def datasets_lines(source: str, *, lower: bool = False, units: str = "words") -> dict[str, Iterator[list[str]]]:
    """Lines of a Hugging Face dataset, by split.

    Args:
        source: NAME, NAME/CONFIG, OWNER/NAME or OWNER/NAME/CONFIG (two parts are tried in this order).

    Raises:
        ImportError: the package `datasets` is absent.
        ValueError: no training split or no text column.
    """
    try:
        import datasets  # pyright: ignore[reportMissingImports]  # an extra
    except ImportError as error:
        raise ImportError(f'hf:{source} needs the package `datasets`: pip install "pplseq[huggingface]"') from error
    parts = source.split("/")
    if not 1 <= len(parts) <= 3 or not all(parts):
        raise ValueError(f"hf:{source}: expected hf:NAME, hf:NAME/CONFIG or hf:OWNER/NAME/CONFIG")
    if len(parts) == 3:
        loaded = datasets.load_dataset("/".join(parts[:2]), parts[2])
    elif len(parts) == 2:
        try:
            loaded = datasets.load_dataset(parts[0], parts[1])
        except (FileNotFoundError, ValueError):  # no such dataset or no such configuration: the name has an owner
            loaded = datasets.load_dataset(source)
    else:
        loaded = datasets.load_dataset(source)
    found = {}
    for split, names in DATASETS_SPLITS.items():
        name = next((name for name in names if name in loaded), None)
        if name is not None:
            found[split] = _column_lines(loaded[name], f"hf:{source}", lower, units)
    if "train" not in found:
        raise ValueError(f"hf:{source}: no training split; found {listing([str(name) for name in loaded])}")
    return found


def _column_lines(rows, source: str, lower: bool, units: str) -> Iterator[list[str]]:
    column = next((name for name in ("text", "sentence") if name in rows.column_names), None)
    if column is None:
        raise ValueError(
            f"{source}: no column 'text' or 'sentence'; found {listing(list(rows.column_names))}. "
            "Write the column you want to a text file and give its path"
        )
    return (
        split_line(line.lower() if lower else line, units)
        for row in rows
        for line in row[column].removesuffix("\n").split("\n")
    )
