"""Which prompts to explore with which seeds, and how far previews can be trusted."""
