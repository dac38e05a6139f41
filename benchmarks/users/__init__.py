"""What users bring, and what they do: files, checkpoints, streams, notebooks, rewards, installs."""
