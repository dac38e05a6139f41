"""What is on record of a run: events, metrics, and what trainers report."""
