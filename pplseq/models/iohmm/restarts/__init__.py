"""Many parameter sets of an input-output HMM fitted at once."""
