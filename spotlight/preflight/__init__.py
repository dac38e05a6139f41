"""Whether a job can start: what stands in its files, before any process starts."""
