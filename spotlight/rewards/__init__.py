"""Scorers: from images and prompts to rewards in [0, 1]."""
