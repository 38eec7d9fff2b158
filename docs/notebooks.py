"""Tutorials as notebooks: the words of a page and its programs, as cells."""

from __future__ import annotations

import json
import re

FENCE = re.compile(r"^```python ([^\n]*exec=[^\n]*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)]+\)")  # to another page of the site
FIRST = "%pip install --quiet pplseq\n%matplotlib inline"


def cells(markdown: str) -> list[tuple[str, str]]:
    """(kind, text) of each cell. What a page only draws with is left out: a notebook shows its figures by itself."""
    found, place = [("code", FIRST)], 0
    for fence in FENCE.finditer(markdown):
        found.append(("markdown", markdown[place : fence.start()]))
        if 'html="1"' not in fence[1]:
            found.append(("code", fence[2]))
        place = fence.end()
    found.append(("markdown", markdown[place:]))
    stripped = [(kind, text.strip()) for kind, text in found if text.strip()]
    return [(kind, LINK.sub(r"\1", text) if kind == "markdown" else text) for kind, text in stripped]


def notebook(markdown: str) -> str:
    """The JSON of a page's notebook."""
    made = []
    for number, (kind, text) in enumerate(cells(markdown)):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": text.splitlines(keepends=True)}
        made.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))
    known = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return json.dumps({"cells": made, "metadata": known, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"
