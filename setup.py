"""What pyproject.toml cannot say: addresses within the repository's, and a README whose links work on an index."""

import re
from pathlib import Path

from setuptools import setup

REPOSITORY = "https://example.com/pplseq"  # a placeholder: where the repository is public, change this line alone


def absolute(text: str) -> str:
    """Markdown whose links to files lead to the repository."""
    return re.sub(r"\]\((?!\w+:|#)", f"]({REPOSITORY}/blob/main/", text)


setup(
    long_description=absolute(Path("README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
    project_urls={
        "Repository": REPOSITORY,
        "Documentation": f"{REPOSITORY}/tree/main/docs",
        "Changes": f"{REPOSITORY}/blob/main/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
    },
)
