"""Measurements, each a module: `python -m benchmarks.NAME --json [--quick]`; the last line is one
JSON object."""
