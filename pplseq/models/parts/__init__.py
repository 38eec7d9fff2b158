"""What models are made of and learn: starts, moves and emissions, each with its parameters, priors and M-step."""
