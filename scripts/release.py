"""Builds a release from what is committed, and looks at it as an index would: ``make release`` calls it.

    python scripts/release.py [--out dist]

Needs build, check-manifest and twine. Wheel and sdist are built twice, from two copies of the last commit, dated as it is
(SOURCE_DATE_EPOCH), and must be the same bytes; the notes are those of the version in CHANGELOG.md. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of wheel and sdist, which must be empty; "
                        "the notes are written beside it, to OUT-notes.md")  # fmt: skip
    out = parser.parse_args().out
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"{out}: expected an empty folder or none, as all that is in it would be released; empty it")
    if changed := git("status", "--porcelain"):
        raise SystemExit(f"a release is made of what is committed; commit or remove first:\n{changed}")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    told = notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    if f"\nversion: {version}\n" not in (ROOT / "CITATION.cff").read_text(encoding="utf-8"):
        raise SystemExit(f"CITATION.cff: expected version: {version}, as in pyproject.toml")
    run("check_manifest", cwd=ROOT)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        made, again = build(Path(first)), build(Path(second))
        if different := [name for name in made if made[name] != again.get(name)]:
            raise SystemExit(f"{different[0]}: two builds of one commit differ")
    out.mkdir(parents=True, exist_ok=True)
    for name, content in made.items():
        (out / name).write_bytes(content)
        print(hashlib.sha256(content).hexdigest(), out / name)
    run("twine", "check", "--strict", *(str(out / name) for name in made), cwd=ROOT)
    out.with_name(f"{out.name}-notes.md").write_text(told, encoding="utf-8")


def notes(changes: str, version: str) -> str:
    """What CHANGELOG.md says of a version, without its heading.

    Raises:
        SystemExit: it says nothing of it.
    """
    found = re.search(rf"^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", changes, re.DOTALL | re.MULTILINE)
    if not found:
        raise SystemExit(f"CHANGELOG.md: expected a heading '## {version}', as pyproject.toml names it")
    return found[1].strip() + "\n"


def build(folder: Path) -> dict[str, bytes]:
    """Wheel and sdist of the last commit: name -> content."""
    date = int(git("log", "-1", "--format=%ct"))
    source = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(source)) as archive:
        archive.extractall(folder / "source", filter="data")
    run("build", "--outdir", str(folder / "dist"), cwd=folder / "source", SOURCE_DATE_EPOCH=str(date))
    made = {path.name: path.read_bytes() for path in sorted((folder / "dist").iterdir())}
    return {name: dated(content, date) if name.endswith(".tar.gz") else content for name, content in made.items()}


def dated(sdist: bytes, date: int) -> bytes:
    """An sdist whose files are in order, of one date and of nobody; setuptools dates them as they were written."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(sdist)) as old,
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=date) as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            content = old.extractfile(member) if member.isfile() else None
            member.mtime, member.uid, member.gid, member.uname, member.gname, member.pax_headers = date, 0, 0, "", "", {}
            new.addfile(member, content)
    return packed.getvalue()


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def run(module: str, *arguments: str, cwd: Path, **settings: str) -> None:
    subprocess.run([sys.executable, "-m", module, *arguments], cwd=cwd, check=True, env={**os.environ, **settings})


if __name__ == "__main__":
    main()
