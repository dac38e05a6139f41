"""Serves any scorer over HTTP, in the schema of `spotlight.rewards.schema`."""
