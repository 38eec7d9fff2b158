"""Folders that releases wrote: every later version reads them, and answers as they did."""

import json
import re
import shutil
import zipfile
from pathlib import Path

import pytest
from support.stored_formats import answer, names

from pplseq.models import MODELS

STORED = sorted((Path(__file__).parent / "stored").glob("*.zip"))
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module", params=STORED, ids=lambda path: path.stem)
def place(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("release")
    shutil.unpack_archive(request.param, folder)
    return folder / "written"


def test_answers_are_those_of_the_release(place, monkeypatch):
    monkeypatch.chdir(place)
    told = json.loads((place / "answers.json").read_text())
    assert list(told) == names(place)
    for name, expected in told.items():
        assert numbers(answer(place, name)) == pytest.approx(numbers(expected), rel=1e-4), name  # of float32, on any processor


def numbers(value):
    """All numbers of an answer but times, by place."""
    if isinstance(value, dict):
        parts = {key: part for key, part in value.items() if "second" not in key}.items()
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    else:
        return {"": value} if isinstance(value, int | float) else {}
    return {f"{key}.{name}": number for key, part in parts for name, number in numbers(part).items()}


def test_every_version_of_a_format_is_among_them():
    """Who raises the version of a format, or adds a model, writes its folder by `support.stored_formats`."""
    stored, models = set(), set()
    for release in map(zipfile.ZipFile, STORED):
        for name in release.namelist():
            header = json.loads(release.read(name)) if name.endswith(".json") else None
            if isinstance(header, dict) and "format" in header:
                stored.add((header["format"], header["version"]))
                models.add(header.get("model"))
    now = set()
    for path in (ROOT / "pplseq").rglob("*.py"):
        found = re.findall(r'FolderKind\(\s+"([\w-]+)", (\d+)', path.read_text(encoding="utf-8"))
        now |= {(name, int(version)) for name, version in found}
    own = {name for name in MODELS if MODELS[name].__module__.startswith("pplseq.")}  # other tests register classes, too
    passing = {("pplseq-numbered-text", 1), ("pplseq-lag-counts-of-a-part", 1)}  # gone when a count is done
    assert passing < now and len(now) == 7 and now - passing <= stored and own <= models
