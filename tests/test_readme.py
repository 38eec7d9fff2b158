"""The README's Python blocks run, and its commands exist."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_python_block(number, capsys):
    block = BLOCKS[number].replace("max_time=60", "max_time=0.2")  # what a reader waits for, a test need not
    exec(compile(block, f"README block {number}", "exec"), {"__name__": "readme"})
    assert "nan" not in capsys.readouterr().out


def test_commands_exist():
    from pplseq.cli import main

    commands = set(re.findall(r"pplseq ([a-z]+) ", "\n".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL))))
    assert commands and commands <= set(main.list_commands(None))


def test_links_lead_to_files():
    """Those of the pages beside the README, too; the site's build looks at the pages of docs/."""
    root = Path(__file__).parents[1]
    for page in root.glob("*.md"):
        text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"\w+:|#", link)]
        assert [link for link in links if not (root / link).exists()] == [], page.name
