"""What every second of every worker went to, and what it cost. Pure."""
