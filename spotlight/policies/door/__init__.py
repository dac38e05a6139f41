"""Who may come in at the coordinator's door."""
