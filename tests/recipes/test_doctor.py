"""What `pplseq doctor` tells, and that it would notice a wrong answer."""

import pytest
from click.testing import CliRunner

from pplseq.cli import main
from pplseq.recipes import doctor


def told(args=("doctor",)):
    result = CliRunner().invoke(main, list(args))
    return result.exit_code, result.output


def test_a_sound_installation():
    code, output = told()
    assert code == 0 and "WRONG" not in output, output
    for name in ("pplseq", "torch", "processor", "compiled loops", "extra tables", *doctor.FAMILIES):
        assert f"\n{name} " in f"\n{output}"


@pytest.mark.parametrize(
    "ask, said", [(lambda: (1.0, 1.0 + 1e-6), "1, and 1.000001 is right"), (lambda: 1 / 0, "ZeroDivisionError: ")]
)
def test_a_wrong_answer_is_told(monkeypatch, ask, said):
    monkeypatch.setattr(doctor, "FAMILIES", {"HMM": ask})
    code, output = told()
    assert code == 1 and said in output and output.rstrip().endswith("WRONG")


def test_what_needs_an_extra_is_no_fault(monkeypatch):
    def ask():
        raise ImportError("needs the package scipy")

    monkeypatch.setattr(doctor, "FAMILIES", {"text LDS": ask})
    code, output = told()
    assert code == 0 and "needs the package scipy" in output
