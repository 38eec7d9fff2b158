"""Recipe of input-output HMMs: tables, and labelled strings."""
