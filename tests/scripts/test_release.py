"""What a release is made of: notes, links of the README, extras that messages name, an sdist of the same bytes."""

import io
import re
import runpy
import tarfile
import tomllib
from pathlib import Path

import pytest
import setuptools

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def release():
    return runpy.run_path(str(ROOT / "scripts/release.py"))


def test_notes_are_those_of_the_version(release):
    told = release["notes"]((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), PROJECT["version"])
    assert 5 < len(told.splitlines()) < 20 and "## " not in told
    assert release["notes"]("## 1.0\n\n- a\n\n## 0.9\n- b\n", "1.0") == "- a\n"
    with pytest.raises(SystemExit, match="## 2.0"):
        release["notes"]("## 1.0\n", "2.0")


def test_an_sdist_has_one_date_and_order(release):
    def packed(names, date):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name in names:
                member = tarfile.TarInfo(name)
                member.size, member.mtime, member.uname = len(name), date, f"user {date}"
                archive.addfile(member, io.BytesIO(name.encode()))
        return file.getvalue()

    made = release["dated"](packed(["a", "b"], 1.25), 99)
    assert made == release["dated"](packed(["b", "a"], 7), 99)
    with tarfile.open(fileobj=io.BytesIO(made)) as archive:
        assert [(m.name, m.mtime, archive.extractfile(m).read()) for m in archive] == [("a", 99, b"a"), ("b", 99, b"b")]


def test_notes_of_a_release_are_not_in_the_next_one(monkeypatch, tmp_path):
    """They lie beside the README, and a tree that holds more than what is committed is not released."""
    from setuptools.command.egg_info import FileList

    for name in ("README.md", "constraints.txt", "dist-notes.md"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    files = FileList()
    files.findall()
    for line in (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            files.process_template_line(line)
    assert sorted(files.files) == ["README.md", "constraints.txt"]


def test_links_of_the_readme_work_on_an_index(monkeypatch):
    given = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: given.update(options))
    monkeypatch.chdir(ROOT)
    runpy.run_path("setup.py")
    links = re.findall(r"\]\(([^)]*)\)", given["long_description"])
    assert len(links) > 10 and all(link.startswith(given["project_urls"]["Repository"]) for link in links)
    for link in links:
        assert (ROOT / link.partition("/blob/main/")[2]).is_file(), link


def test_messages_name_extras_that_are_there():
    for folder in ("pplseq", "docs", "examples", "scripts", "README.md"):
        for path in [ROOT / folder, *(ROOT / folder).rglob("*")]:
            if path.suffix in (".py", ".md"):
                for names in re.findall(r"pplseq\[([a-z,]+)\]", path.read_text(encoding="utf-8")):
                    assert set(names.split(",")) <= set(PROJECT["optional-dependencies"]), (path, names)
