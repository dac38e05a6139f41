"""Scorers: from images and prompts to rewards."""
