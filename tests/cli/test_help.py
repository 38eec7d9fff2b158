"""`pplseq --help` is quick because it imports nothing heavy."""

import ast
import os
import subprocess
import sys
import time

from click.testing import CliRunner

from pplseq.cli import COMMANDS, main
from pplseq.recipes.recipe import RECIPES

HEAVY = ("torch", "pyro", "numpy", "tqdm", "safetensors", "matplotlib")


def test_help_imports_nothing_heavy():
    """Of any command and model, one after the other in a fresh Python; what the first one imports it tells first."""
    asked = [[], *([command] for command in COMMANDS), *(["train", model] for model in RECIPES)]
    script = (
        "import sys; from click.testing import CliRunner; from pplseq.cli import main\n"
        f"for command in {asked!r}:\n"
        "    told = CliRunner().invoke(main, [*command, '--help'])\n"
        f"    print(repr((told.output, [name for name in {HEAVY!r} if name in sys.modules])))\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    told = [ast.literal_eval(line) for line in result.stdout.splitlines()]
    for command, (output, imported) in zip(asked, told, strict=True):
        assert imported == [], command
        assert "Usage:" in output
        assert len(command) < 2 or "--max-time DURATION" in output and "The run:" in output
    assert all(name in told[0][0] for name in COMMANDS)


def test_help_takes_less_than_the_promised_time():
    """Processor time of the quickest of three starts, less what an empty Python takes, so that a busy machine passes."""

    def seconds(code):
        times = []
        for _ in range(3):
            before = os.times()
            subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
            after = os.times()
            times.append(sum(after[2:4]) - sum(before[2:4]))
        return min(times)

    began = time.perf_counter()
    took = seconds("import sys; sys.argv = ['pplseq', '--help']; from pplseq.cli import main; main()")
    assert took < 0.3, f"{took:.2f} s; {time.perf_counter() - began:.2f} s for three"


def test_a_command_that_does_not_exist():
    result = CliRunner().invoke(main, ["trian"])
    assert result.exit_code == 2
    assert "no command 'trian'. Did you mean 'train'?" in result.stderr


def test_debug_shows_the_traceback(tmp_path):
    arguments = ["evaluate", str(tmp_path / "nowhere")]
    quiet = CliRunner().invoke(main, arguments)
    assert quiet.exit_code == 2 and quiet.stderr.startswith("Error: ") and quiet.stderr.count("\n") == 1
    loud = CliRunner().invoke(main, ["--debug", *arguments])
    assert isinstance(loud.exception, FileNotFoundError)
