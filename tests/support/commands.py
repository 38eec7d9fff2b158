"""The command in this process."""

from click.testing import CliRunner, Result

from pplseq.cli import main


def pplseq(*arguments, code: int = 0, input: str | None = None, **more) -> Result:
    """Calls `pplseq` with these arguments, as text, and checks its exit code."""
    result = CliRunner().invoke(main, [str(part) for part in arguments], input=input, catch_exceptions=False, **more)
    assert result.exit_code == code, result.output
    return result
