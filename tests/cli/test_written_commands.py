"""The commands that stand in the README, in the documentation, in scripts and with results: every option they name is there."""

import json
import re
import shlex
from pathlib import Path

import click

from pplseq.cli import main

ROOT = Path(__file__).parents[2]
OF_A_RUN = ("evaluate", "query", "report", "personalize", "compare-streams")  # which need one on the disk


def written():
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", ROOT / "scripts" / "demo.sh")]
    blocks = re.findall(r"```sh\n(.*?)```", texts[0], re.DOTALL)
    for page in (ROOT / "docs").rglob("*.md"):
        blocks += re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    blocks = [block.replace("\\\n", " ") for block in blocks]
    found = re.findall(r"(?<!-m )pplseq [^|\n#<>]*", "\n".join([*blocks, texts[1]]))
    for path in (ROOT / "results").rglob("*.json"):
        found += re.findall(r"pplseq (?:train|evaluate|query|tag|count|cluster|info) [^|>\n]*", _commands(path))
    return sorted({command.replace("${DEMO_EPOCHS:-3}", "3").strip() for command in found})


def _commands(path):
    """What stands under "command" and "train_command", at any depth."""

    def under(value, name=""):
        if isinstance(value, dict):
            return [text for key, inner in value.items() for text in under(inner, key)]
        if isinstance(value, list):
            return [text for inner in value for text in under(inner, name)]
        return [value] if name.endswith("command") and isinstance(value, str) else []

    return "\n".join(under(json.loads(path.read_text(encoding="utf-8"))))


def test_every_command_parses():
    commands = written()
    assert len(commands) > 50
    for command in commands:
        parses(command)


def parses(command):
    arguments = shlex.split(command)[1:]
    with click.Context(main, info_name="pplseq") as context:
        group, name = main, arguments[0]
        while isinstance(group, click.Group):
            if arguments[0] in OF_A_RUN or arguments[:2] == ["train", "--resume"]:
                assert group.get_command(context, arguments[0]) is not None
                return
            name, group, arguments = group.resolve_command(context, arguments)
        assert group is not None, command
        try:
            group.make_context(name, arguments, parent=context)
        except click.BadParameter as error:  # a file that is not here
            assert "does not exist" in str(error), command
