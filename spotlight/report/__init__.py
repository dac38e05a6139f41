"""What a browser shows: the report of a run, self-contained and without JavaScript needed."""
