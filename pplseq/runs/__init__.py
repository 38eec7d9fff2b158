"""Long computations on disk: the loop, signals, checkpoints, folders, metrics."""
