"""From scored samples to new weights: losses, optimizer steps, checkpoints and exports."""
