"""Writes requirements-hashed.txt: what the two commands of the README install, with the hashes of its files.

    python scripts/pin_hashes.py [--add torch=wheels/torch-2.13.0+cpu-....whl] [--out FILE]

Each package at the version of constraints.txt, with the SHA-256 of every file that the Python Package Index has of it, so
that one list serves all platforms: `make demo HASHED=requirements-hashed.txt` installs by it, and nothing else gets in. `--add`
admits files from elsewhere (a build of your own) in the place of the index's. The CUDA libraries that torch from that index
brings along on Linux are not in the list: there, use a build for CPUs, or add their lines. Writing the list needs the network;
it is run in an environment that has the tests' packages.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import tomllib
import urllib.request
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError

from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[1]
INDEX = "https://pypi.org/simple"
PLATFORMS = [
    {"platform_system": "Linux", "sys_platform": "linux", "platform_machine": "x86_64", "os_name": "posix", "extra": ""},
    {"platform_system": "Darwin", "sys_platform": "darwin", "platform_machine": "arm64", "os_name": "posix", "extra": ""},
    {"platform_system": "Windows", "sys_platform": "win32", "platform_machine": "AMD64", "os_name": "nt", "extra": ""},
]
CUDA = re.compile(r"nvidia|cuda|triton")
OWN = ("setuptools", "wheel", "pip")


class Package(NamedTuple):
    """A version of a package: the SHA-256 of all its files, and what its wheel for Linux needs."""

    name: str
    version: str
    hashes: list[str]
    needs: list[Requirement]


def name_of(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read(place: str) -> bytes:
    request = urllib.request.Request(place, headers={"Accept": "application/vnd.pypi.simple.v1+json, */*;q=0.1"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def described(requirement: Requirement, version: str | None) -> Package:
    """What the index has of a version; of the newest that is allowed, and no candidate, where none is given."""
    name = name_of(requirement.name)
    listed = json.loads(read(f"{INDEX}/{name}/"))
    if version is None:
        releases = [Version(text) for text in listed["versions"]]
        version = str(max(v for v in releases if not v.is_prerelease and v in requirement.specifier))
    files = [file for file in listed["files"] if is_of(file["filename"], version)]
    wheel = next((f for f in files if "manylinux" in f["filename"] and "cp311" in f["filename"]), None)
    wheel = wheel or next(file for file in files if file["filename"].endswith(".whl"))
    try:
        needs = Metadata.from_email(read(wheel["url"] + ".metadata"), validate=False).requires_dist or []
    except HTTPError:  # an index without them; then what is installed here tells
        needs = [Requirement(text) for text in distribution(name).requires or []]
    return Package(name, version, [file["hashes"]["sha256"] for file in files], needs)


def is_of(file: str, version: str) -> bool:
    parse = parse_wheel_filename if file.endswith(".whl") else parse_sdist_filename
    try:
        return parse(file)[1] == Version(version)
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return False  # an installer of old


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {name_of(name): version.strip() for name, version in found}


def closure() -> dict[str, Package]:
    """What the index says of every package that the core, the pictures and the tests need, on any platform."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    waiting = [Requirement(text) for text in [*project["dependencies"], *extras["plot"], *extras["test"], *OWN]]
    pinned, found = pins(), {}
    while waiting:
        requirement = waiting.pop()
        name = name_of(requirement.name)
        if name in found:
            continue
        found[name] = described(requirement, pinned.get(name))
        for needed in found[name].needs:
            wanted = [{**place, "extra": extra} for place in PLATFORMS for extra in ("", *requirement.extras)]
            if CUDA.search(needed.name):
                continue
            if needed.marker is None or any(needed.marker.evaluate(environment) for environment in wanted):
                waiting.append(needed)
    return found


def lines(package: Package, added: list[str]) -> str:
    hashes = sorted(added or package.hashes)
    parts = [f"{package.name}=={package.version}", *(f"    --hash=sha256:{value}" for value in hashes)]
    return " \\\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--add", action="append", default=[], metavar="PACKAGE=FILE", help="a file from elsewhere instead")
    added: dict[str, list[str]] = {}
    parser.add_argument("--out", type=Path, default=ROOT / "requirements-hashed.txt")
    given = parser.parse_args()
    out = given.out
    for text in given.add:
        name, _, path = text.partition("=")
        added.setdefault(name_of(name), []).append(hashlib.sha256(Path(path).read_bytes()).hexdigest())
    packages = closure()
    text = "\n".join(lines(packages[name], added.get(name, [])) for name in sorted(packages))
    out.write_text(f"# Written by scripts/pin_hashes.py, which says how to use it.\n{text}\n")
    print(f"{out}: {len(packages)} packages")


if __name__ == "__main__":
    main()
