"""Faults that tests must notice: each can still be planted, and each dies."""

import shutil

import pytest
from support.scripts import SCRIPTS, load_script

mutants = load_script("mutants.py")
ROOT = SCRIPTS.parent


def test_every_fault_can_be_planted():
    assert len({mutant.name for mutant in mutants.MUTANTS}) == len(mutants.MUTANTS) >= 40
    for mutant in mutants.MUTANTS:
        assert (ROOT / mutant.file).read_text().count(mutant.old) == 1, mutant.name
        assert mutant.old != mutant.new and all((ROOT / test).exists() for test in mutant.tests), mutant.name


def test_a_fault_dies_and_no_fault_survives(tmp_path):
    """On a project of one function: the copy is what is tested, and the project itself stays as it is."""
    for part in ("pplseq", "tests", "scripts"):
        (tmp_path / part).mkdir()
    (tmp_path / "pplseq" / "__init__.py").write_text("def twice(x):\n    return 2 * x\n")
    (tmp_path / "tests" / "test_twice.py").write_text("from pplseq import twice\n\n\ndef test():\n    assert twice(3) == 6\n")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for old, new, dead in (("2 * x", "3 * x", True), ("2 * x", "x + x", False)):
        assert mutants.dies(mutants.Mutant("a", "pplseq/__init__.py", old, new, ("tests",)), tmp_path) is dead
    assert "2 * x" in (tmp_path / "pplseq" / "__init__.py").read_text()
    with pytest.raises(ValueError, match="expected '4' once in pplseq/__init__.py, found 0 times"):
        mutants.dies(mutants.Mutant("a", "pplseq/__init__.py", "4", "5", ("tests",)), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_every_fault_is_noticed(mutant):
    assert mutants.dies(mutant)
