"""Who is there and what each has: the table of nodes and workers, and who is admitted to it."""
