"""Commands of input-output HMMs."""
