"""What a job and a session have in common: requests, weights, nodes and a journal."""
