"""`pplseq train`."""
