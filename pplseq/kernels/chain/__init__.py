"""Chains of states through compiled loops: rows from tables (`loops`, `call`); any matrices, in pieces of time (`piece_*`)."""

LOWEST = 1e-280  # a smaller number may have lost digits, or be what is left of several that underflowed
