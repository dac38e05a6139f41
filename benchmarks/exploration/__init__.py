"""See `benchmarks.exploration.__main__`."""
