"""`python -m pplseq` is the command `pplseq`."""

from pplseq.cli import main

main(prog_name="pplseq")
