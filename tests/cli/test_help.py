"""`pplseq --help` is quick because it imports nothing heavy."""

import os
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from pplseq.cli import COMMANDS, main
from pplseq.recipes import RECIPES

HEAVY = ("torch", "pyro", "numpy", "tqdm", "safetensors", "matplotlib")


def run(*arguments):
    """The command in a fresh Python; returns (stdout, heavy modules it imported)."""
    script = (
        "import sys; from pplseq.cli import main\n"
        f"try: main({list(arguments)!r})\n"
        f"finally: print('\\nIMPORTED', *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    output, _, imported = result.stdout.rpartition("\nIMPORTED")
    return output + result.stderr, imported.split()


def test_help_imports_nothing_heavy():
    output, imported = run("--help")
    assert imported == []
    assert all(name in output for name in COMMANDS)


@pytest.mark.parametrize("command", list(COMMANDS))
def test_help_of_a_command_imports_nothing_heavy(command):
    output, imported = run(command, "--help")
    assert "Usage:" in output
    assert imported == []


@pytest.mark.parametrize("model", list(RECIPES))
def test_help_of_a_model_imports_nothing_heavy(model):
    output, imported = run("train", model, "--help")
    assert "--max-time DURATION" in output and "The run:" in output
    assert imported == []


def test_help_takes_less_than_the_promised_time():
    """Processor time of the quickest of five starts, less what an empty Python takes, so that a busy machine passes."""

    def seconds(code):
        times = []
        for _ in range(5):
            before = os.times()
            subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
            after = os.times()
            times.append(sum(after[2:4]) - sum(before[2:4]))
        return min(times)

    began = time.perf_counter()
    took = seconds("import sys; sys.argv = ['pplseq', '--help']; from pplseq.cli import main; main()")
    assert took < 0.3, f"{took:.2f} s; {time.perf_counter() - began:.2f} s for five"


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
