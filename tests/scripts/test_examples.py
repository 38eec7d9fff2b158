"""The example scripts run, as a reader would run them."""

import io
import os
import re
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def script(name, *arguments):
    """What a script prints, run in this process."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(ROOT / "scripts" / name), run_name="__main__")
    return printed.getvalue()


def run(*command, **environment):
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "example"
    options = "--data builtin:generated --num-states 64 --blocks 16 --hidden-size 16 --minutes 10 --epochs 3"
    return folder, script("train_vlhmm.py", folder, *options.split())


def test_training(trained):
    _, output = trained
    perplexity = float(re.search(r"test perplexity, carried: ([\d.]+)", output).group(1))
    assert 5 < perplexity < 35  # 61 words; the language itself has about 12
    assert re.search(r"test perplexity, sentence: [\d.]+ over [\d,]+ tokens", output)


def test_queries(trained):
    folder, _ = trained
    words = (folder / "best" / "vocab.txt").read_text().split()[1:4]
    sentence = f"{words[0]} _ {words[1]} {words[2]}"
    output = script("query_posterior.py", folder / "best", sentence)
    assert "log p(words) = " in output and "most probable path: [" in output
    assert output.count("a draw:") == 3 and "word 2 could be: " in output
    assert "in one block with" in output


@pytest.mark.slow
def test_input_output_hmm(tmp_path):
    """It asserts by itself that it recovers the system it drew its data from."""
    script, picture = ROOT / "scripts" / "iohmm_example.py", tmp_path / "effects.png"
    output = run(sys.executable, script, "--sequences", 12, "--steps", 100, "--num-restarts", 8, "--picture", picture)
    assert re.search(r"decode: 9\d\.\d% of the modes are right", output) and "in 5 minutes: " in output
    assert picture.stat().st_size > 1000


@pytest.mark.slow
def test_demonstration(tmp_path):
    output = run("bash", ROOT / "scripts" / "demo.sh", tmp_path / "demo", DEMO_EPOCHS="1")
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10_000
    assert list((tmp_path / "demo").glob("*.png"))
    assert "gap 4:" in output
