"""A job: its iteration machine, trainers, exploration and run folder."""
