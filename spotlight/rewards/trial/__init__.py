"""Tries the scorers of a job on image files, without a model."""
