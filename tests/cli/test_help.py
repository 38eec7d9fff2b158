"""`pplseq --help` is quick because it imports nothing heavy; errors name the flags."""

import ast
import os
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner
from support.commands import pplseq

from pplseq.cli import COMMANDS, main
from pplseq.cli.options import in_flags, options_for
from pplseq.recipes.recipe import RECIPES, recipe_named

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


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("num_topics: topics need transition='hierarchical', got 'softmax'",
         "--num-topics: topics need --transition hierarchical, got 'softmax'"),
        ("num_states = 31 is not divisible by num_blocks = 4", "--num-states 31 is not divisible by --num-blocks 4"),
        ("leave it out: tied=True and lower=False, batch_size", "leave it out: --tied and --no-lower, --batch-size"),
        ("so lr cannot change; only these can: epochs, lr", "so --lr cannot change; only these can: --epochs, --lr"),
        ("make min_count=2 (--min-count 2), (--log-interval, log_interval)", "make --min-count 2, (--log-interval)"),
        ("begun with tied = False, not True; order_by=a", "begun with --tied = False, not True; order_by=a"),
        ("blocks must be a path", "--blocks must be a path"),
        # of Python, of files and of data
        ("load_corpus(text, units='bytes', num_states=3)", "load_corpus(text, units='bytes', num_states=3)"),
        ("/a/num_states: 'num_states=3', my_num_states=3", "/a/num_states: 'num_states=3', my_num_states=3"),
        ("the start of blocks, seed", "the start of blocks, seed"),
    ],
)  # fmt: skip
def test_errors_name_flags(said, expected):
    params = options_for(recipe_named("vlhmm").settings)
    assert in_flags(said, params) == expected


def test_an_error_of_the_library_names_flags(tmp_path):
    text, config = tmp_path / "text", tmp_path / "settings.toml"
    text.write_text("a b\nb c\nc a\n" * 9)
    config.write_text("num_states = 0\n")
    command = ["train", "vlhmm", text, "--out", tmp_path / "run"]
    assert "--transition hierarchical" in pplseq(*command, "--start", "counts", code=2).stderr
    assert "'--seed': seed must be at least 0, got -1" in pplseq(*command, "--seed", -1, code=2).stderr
    assert "--blocks must be brown, uniform, none or an existing paths file" in pplseq(*command, "--blocks", "", code=2).stderr
    assert f"{config}: num_states must" in pplseq(*command, "--config", config, code=2).stderr
