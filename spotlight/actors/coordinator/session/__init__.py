"""A session: the loop of another program, whose prompt groups are served."""
