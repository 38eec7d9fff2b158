"""`pplseq tag`."""
