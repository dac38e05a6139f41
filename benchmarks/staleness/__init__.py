"""Does the ranking of seeds survive updates? A study of a run, `python -m benchmarks.staleness`."""
