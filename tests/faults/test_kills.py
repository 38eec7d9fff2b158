"""Killed at any operation that writes, a command goes on when it is called again, and leaves what an undisturbed one leaves.

The number of kills of each command is an option of the slow test: PPLSEQ_KILLS=70 are about 1,000 in all.
"""

import os

import pytest
from support.faulty_disk import Kills, command, import_everything, in_process
from support.small_runs import small_runs, write_data

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
QUICK = ("hmm-em", "personalize", "count")
NAMES = list(small_runs({name: None for name in ("text.txt", "stream.txt", "rows.csv", "strings.txt", "tags.txt")}, "counts"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    import_everything()
    folder = tmp_path_factory.mktemp("data")
    data, counts = write_data(folder), folder / "counts"
    assert in_process(command("count", data["text.txt"], "--max-lag", 4, "--out", counts))[0] == 0
    return small_runs(data, counts)


@pytest.mark.parametrize("name", QUICK)
def test_a_command_that_is_killed_goes_on(name, runs, tmp_path):
    kills = Kills(tmp_path / "kills", runs[name])
    assert kills.kill() is None


@pytest.mark.parametrize(
    "name", ["personalize", pytest.param("unsupervised", marks=pytest.mark.slow), pytest.param("crf", marks=pytest.mark.slow)]
)
def test_a_command_that_is_killed_at_its_end_leaves_nothing_behind(name, runs, tmp_path):
    kills = Kills(tmp_path / "kills", runs[name])
    assert not [found for back in range(0, 16, 3) if (found := kills.kill(kills.num_operations - back)) is not None]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_command_goes_on_wherever_it_is_killed(name, runs, tmp_path):
    kills = Kills(tmp_path / "kills", runs[name], seed=int(os.environ.get("PPLSEQ_SEED", "0")))
    wrong = [found for _ in range(int(os.environ.get("PPLSEQ_KILLS", "10"))) if (found := kills.kill()) is not None]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_leaves_what_was_there_before(name, runs, tmp_path):
    kills = Kills(tmp_path / "kills", runs[name], seed=int(os.environ.get("PPLSEQ_SEED", "0")))
    wrong = [found for _ in range(int(os.environ.get("PPLSEQ_KILLS", "10"))) if (found := kills.fill()) is not None]
    assert not wrong, "\n".join(wrong)
