"""What every method that trains shares: the run, its task, its checkpoints and its result."""
