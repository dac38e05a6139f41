"""What outlives a process: the run folder with its records, state and checkpoints."""
